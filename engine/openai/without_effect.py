"""Members of requests that are accepted and do not change the answer. Every other member has an effect or is refused.

Clients send these members to all servers. docs/serving.md lists them too.
"""

BODY = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
MESSAGE_BLOCK = frozenset({"cache_control"})  # of /v1/messages: prefixes of all prompts are cached
THINKING_BLOCK = frozenset({"signature"})  # of a block that is sent back
TOOL_MESSAGE = frozenset({"name"})  # the tool's name, which the call before the message has as well
TOOL_CALL = frozenset({"index"})  # clients that collect a stream's deltas send it back
JSON_SCHEMA = frozenset({"name", "description", "strict"})  # a schema is always enforced
