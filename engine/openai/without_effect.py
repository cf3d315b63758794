"""Members of requests that are accepted and do not change the answer. Every other member has an effect or is refused.

Clients send these members to all servers. docs/serving.md lists them too.
"""

BODY = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
# a member of blocks in /v1/messages; prefixes of all prompts are cached anyway
MESSAGE_BLOCK = frozenset({"cache_control"})
THINKING_BLOCK = frozenset({"signature"})  # a member of thinking blocks that clients send back
TOOL_MESSAGE = frozenset({"name"})  # the tool's name, which the preceding call contains already
TOOL_CALL = frozenset({"index"})  # clients that assemble a stream's deltas send this member back
JSON_SCHEMA = frozenset({"name", "description", "strict"})  # a schema is always enforced
