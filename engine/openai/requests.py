"""Parses the JSON bodies of OpenAI's chat and text completions into engine requests.

A body is either supported in full or refused. An option that would change the answer but is not implemented is an error
(`unsupported_parameter`), and so is an unknown name (`unknown_parameter`). Only the members that
`engine.openai.without_effect` lists are ignored.

    body ─ parse_chat / parse_completion ─ ParsedRequest ─ engine_requests ─ one Request per choice
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.fields import Fields, InvalidRequest, encodable, kind_of
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import Grammar
from engine.openai import options, output_format, tools, without_effect
from engine.openai.default_tools import template_has_tools, with_tools_as_text
from engine.openai.limits import TokenLimit, token_limit
from engine.openai.messages import mention_tools, parse_messages
from engine.openai.reasoning import BUDGET, SWITCHES, check_budget, parse_thinking, template_variables
from engine.openai.tool_calls import CallForm, CallStyle, form_of_template
from engine.openai.tools import ToolUse, call_grammar, parse_tools
from engine.request import Request, SamplingParams
from engine.thinking import Thinking
from engine.tokenizer import ChatTemplateError, Tokenizer

__all__ = ["InvalidRequest", "ParsedRequest", "parse_chat", "parse_completion"]

# These options are not implemented. They are refused unless they have one of these values, which have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "continue_final_message": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
_COMMON = (
    frozenset({"model", "remember_answers", "return_token_ids", "return_acceptance"})
    | options.SAMPLING
    | output_format.NAMES
    | without_effect.BODY
)
_CHAT = _COMMON | tools.NAMES | {"messages", "max_completion_tokens", "top_logprobs"}
_CHAT |= {"prediction"} | SWITCHES | {"separate_reasoning", BUDGET}
_COMPLETION = _COMMON | {"prompt", "echo"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A parsed request. If it has a grammar, `compiled` must be called before `engine_requests`.

    A choice's index is `p * n + i` for the i-th choice of prompt p, both counted from 0.
    """

    model: str  # as requested; "" if the body names none
    prompts: tuple[tuple[int, ...], ...]  # chat has one; completions may have several
    choices: tuple[tuple[int, SamplingParams], ...]  # by index of the choice: index of its prompt, its parameters
    limits: tuple[TokenLimit, ...]  # by index of the choice
    seed: int  # seed of the first choice, from which the seeds of the other choices are derived
    n: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool  # whether every chunk of the stream contains the usage so far
    grammar_param: str | None  # name of the request parameter that set the grammar, for error messages
    return_token_ids: bool = False
    return_acceptance: bool = False  # whether each chunk says which of its text comes from accepted draft tokens
    echo: bool = False  # whether each choice begins with its prompt
    # whether drafters may copy from this answer for later requests, and from earlier answers for this one
    remember_answers: bool = True
    calls: CallStyle | None = None  # None: the request has no callable tools
    prediction: tuple[int, ...] = ()  # token ids of the text that the answers may repeat
    separated: Thinking | None = None  # the reasoning trace that is separated from the answers' text

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The tokens of the first prompt, which is the only one for chat."""
        return self.prompts[0]

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of the first choice."""
        return self.choices[0][1]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    def compiled(self, grammars: GrammarCompiler) -> "ParsedRequest":
        """Returns the request with its grammar compiled, which may take seconds.

        Raises: InvalidRequest: the grammar is refused.
        """
        if self.sampling.grammar is None:
            return self
        grammar = grammars.compile(self.sampling.grammar, param=self.grammar_param)
        choices = tuple((prompt, replace(sampling, grammar=grammar)) for prompt, sampling in self.choices)
        return replace(self, choices=choices)

    def engine_requests(
        self, request_id: str, *, adapter: str | None = None, memory: str | None = None
    ) -> list[Request]:
        """Returns one request per choice, in the order of their indices, with ids `<request_id>-<index>`."""
        memory = memory if self.remember_answers else None
        return [
            Request(
                f"{request_id}-{index}",
                self.prompts[prompt],
                sampling,
                adapter,
                memory,
                prediction_token_ids=self.prediction,
            )
            for index, (prompt, sampling) in enumerate(self.choices)
        ]


def parse_chat(
    body: Mapping[str, Any],
    *,
    tokenizer: Tokenizer,
    max_seq_len: int,
    default_seed: int | None = None,
    call_form: CallForm | None = None,
    max_tokens_cap: int | None = None,
) -> ParsedRequest:
    """Reads the body of POST /v1/chat/completions.

    Args:
        default_seed: seed for a body without `seed`. None: a random seed, so a repeated request has another result.
        max_tokens_cap: an upper limit for the max_tokens of the body.
        call_form: the model's format of tool calls; None: the format found in the model's chat template.

    Raises: InvalidRequest
    """
    fields = Fields(body)
    _refuse_unsupported(fields, known=_CHAT)
    use = parse_tools(fields)
    grammar = output_format.parse_output_format(fields)
    calls = None
    if use is not None:
        form = _call_form(tokenizer, call_form)
        calls = CallStyle(form, frozenset(tool.name for tool in use.callable))
        if grammar is not None:
            raise InvalidRequest(
                "an answer cannot both have a format and call tools: leave one out, or send tool_choice none",
                param="response_format",
                code="unsupported_parameter",
            )
        grammar = call_grammar(use, form)
    prompt = encode_messages(fields, tokenizer=tokenizer, use=use)
    thinking = parse_thinking(fields, prompt, tokenizer)
    max_tokens_param = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    sampling = options.parse_sampling(
        fields,
        vocab_size=tokenizer.vocab_size,
        defaults=tokenizer.generation_defaults,
        num_logprobs=_chat_logprobs(fields),
    )
    parsed = _parsed(
        fields,
        prompts=(prompt,),
        prompt_param="messages",
        max_tokens_param=max_tokens_param,
        max_tokens_cap=max_tokens_cap,
        max_tokens_default=tokenizer.generation_defaults.max_tokens,
        sampling=replace(sampling, thinking=thinking),
        grammar=grammar,
        max_seq_len=max_seq_len,
        default_seed=default_seed,
    )
    parsed = replace(parsed, prediction=options.parse_prediction(fields, tokenizer, max_seq_len=max_seq_len))
    max_tokens = fields.integer(max_tokens_param, at_least=1)
    check_budget(thinking, num_prompt_tokens=len(prompt), max_tokens=max_tokens, max_seq_len=max_seq_len)
    if fields.boolean("separate_reasoning", True):
        parsed = replace(parsed, separated=thinking)
    if calls is None:
        return parsed
    options.refuse_acceptance_of_calls(parsed.return_acceptance)
    return replace(parsed, calls=calls, grammar_param="tools")


def parse_completion(
    body: Mapping[str, Any],
    *,
    tokenizer: Tokenizer,
    max_seq_len: int,
    default_seed: int | None = None,
    call_form: CallForm | None = None,
    max_tokens_cap: int | None = None,
) -> ParsedRequest:
    """Reads the body of POST /v1/completions. The arguments are as in `parse_chat`; `call_form` has no effect.

    Raises: InvalidRequest
    """
    fields = Fields(body)
    _refuse_unsupported(fields, known=_COMPLETION)
    num_logprobs = fields.integer("logprobs", at_least=0, at_most=options.MAX_LOGPROBS)
    echo = fields.boolean("echo", False)
    if echo and fields.boolean("stream", False):
        message = "echo is not supported in a stream: it must be false or absent"
        raise InvalidRequest(message, param="echo", code="unsupported_parameter")
    parsed = _parsed(
        fields,
        prompts=_prompts(fields.get("prompt"), tokenizer),
        prompt_param="prompt",
        max_tokens_param="max_tokens",
        max_tokens_cap=max_tokens_cap,
        max_tokens_default=tokenizer.generation_defaults.max_tokens,
        sampling=options.parse_sampling(
            fields, vocab_size=tokenizer.vocab_size, defaults=tokenizer.generation_defaults, num_logprobs=num_logprobs
        ),
        grammar=output_format.parse_output_format(fields),
        max_seq_len=max_seq_len,
        default_seed=default_seed,
    )
    return _with_echo(parsed) if echo else parsed


def _with_echo(parsed: ParsedRequest) -> ParsedRequest:
    wants_logprobs = parsed.sampling.num_logprobs is not None
    if wants_logprobs:
        num_tokens = sum(len(parsed.prompts[prompt]) + one.max_tokens for prompt, one in parsed.choices)
        options.check_num_logprobs(parsed.sampling.num_logprobs, num_tokens=num_tokens)
    choices = tuple((prompt, replace(sampling, prompt_logprobs=wants_logprobs)) for prompt, sampling in parsed.choices)
    return replace(parsed, echo=True, choices=choices)


def encode_messages(
    fields: Fields, *, tokenizer: Tokenizer, use: ToolUse | None, add_generation_prompt: bool = True
) -> tuple[int, ...]:
    """Returns the token ids of the text of `render_messages`, which has the same arguments and errors."""
    text = render_messages(fields, tokenizer=tokenizer, use=use, add_generation_prompt=add_generation_prompt)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def render_messages(
    fields: Fields, *, tokenizer: Tokenizer, use: ToolUse | None, add_generation_prompt: bool = True
) -> str:
    """Renders messages, tools and switches for reasoning with the chat template. Raises: InvalidRequest."""
    messages = parse_messages(fields)
    tools = [tool.definition for tool in use.tools] if use else None
    if (tools or mention_tools(messages)) and not template_has_tools(tokenizer):
        messages, tools = with_tools_as_text(messages, tools or ()), None
    variables = template_variables(fields, tokenizer)
    try:
        return tokenizer.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            template_variables=variables,
        )
    except ChatTemplateError as error:
        raise InvalidRequest(str(error)[:500], param="messages", code="chat_template_error") from error


def _parsed(
    fields: Fields,
    *,
    prompts: tuple[tuple[int, ...], ...],
    prompt_param: str,
    max_tokens_param: str,
    max_tokens_cap: int | None,
    max_tokens_default: int | None,
    sampling: SamplingParams,
    grammar: Grammar | None,
    max_seq_len: int,
    default_seed: int | None,
) -> ParsedRequest:
    for prompt in prompts:
        _check_length(prompt, max_seq_len=max_seq_len, param=prompt_param)
    n = options.parse_num_choices(fields, num_prompts=len(prompts))
    seed = options.parse_seed(fields, default_seed)
    stream = fields.boolean("stream", False)
    include_usage, continuous_usage = options.parse_usage_options(fields, stream=stream)
    max_tokens = fields.integer(max_tokens_param, at_least=1)
    choices, limits = [], []
    for index in range(n * len(prompts)):
        limit = token_limit(
            max_tokens,
            param=max_tokens_param,
            num_prompt_tokens=len(prompts[index // n]),
            max_seq_len=max_seq_len,
            cap=max_tokens_cap,
            default=max_tokens_default,
        )
        min_tokens = options.parse_min_tokens(fields, at_most=limit.max_tokens if max_tokens is None else max_tokens)
        limited = replace(sampling, max_tokens=limit.max_tokens, grammar=grammar)
        limited = replace(limited, min_tokens=min(min_tokens, limit.max_tokens))
        choices.append((index // n, replace(limited, seed=options.choice_seed(seed, index))))
        limits.append(limit)
    num_tokens = sum(choice_sampling.max_tokens for _, choice_sampling in choices)
    options.check_num_logprobs(sampling.num_logprobs, num_tokens=num_tokens)
    return ParsedRequest(
        remember_answers=fields.boolean("remember_answers", True),
        return_token_ids=fields.boolean("return_token_ids", False),
        return_acceptance=options.parse_return_acceptance(fields, stream=stream),
        model=fields.string("model", ""),
        prompts=prompts,
        choices=tuple(choices),
        limits=tuple(limits),
        seed=seed,
        n=n,
        stop=options.parse_stop_strings(fields),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        grammar_param=None if grammar is None else output_format.param_of(fields),
    )


def _refuse_unsupported(fields: Fields, *, known: frozenset[str]) -> None:
    for name in fields:
        value = fields.get(name)
        if name in known:
            continue
        if name not in _NEUTRAL:
            raise InvalidRequest(f"unknown parameter: {name[:80]}", param=name[:80], code="unknown_parameter")
        if value is not None and value not in _NEUTRAL[name]:
            allowed = " or ".join(["absent", *(repr(neutral) for neutral in _NEUTRAL[name])])
            raise InvalidRequest(
                f"{name} is not supported by this release: it must be {allowed}, got {kind_of(value)}",
                param=name,
                code="unsupported_parameter",
            )


def _call_form(tokenizer: Tokenizer, configured: CallForm | None) -> CallForm:
    if not template_has_tools(tokenizer):
        return CallForm.HERMES  # the format that `with_tools_as_text` describes to the model
    form = configured or form_of_template(tokenizer.tool_template)
    if form is None:
        raise InvalidRequest(
            "the format of this model's tool calls is not known; start the server with --tool-call-parser",
            param="tools",
            code="unsupported_parameter",
        )
    return form


def _chat_logprobs(fields: Fields) -> int | None:
    wants_logprobs = fields.boolean("logprobs", False)
    num_top = fields.integer("top_logprobs", at_least=0, at_most=options.MAX_LOGPROBS)
    if num_top and not wants_logprobs:
        raise InvalidRequest(
            f"top_logprobs needs logprobs to be true, got top_logprobs {num_top}", param="top_logprobs"
        )
    return (num_top or 0) if wants_logprobs else None


def _prompts(prompt: Any, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Returns the token ids of each prompt.

    `prompt`: a string, a list of token ids, a list of strings, or a list of lists of token ids.
    """
    if isinstance(prompt, str):
        return (tuple(tokenizer.encode(encodable(prompt, param="prompt"))),)
    if _are_token_ids(prompt, tokenizer):
        return (tuple(prompt),)
    if isinstance(prompt, list) and prompt:
        if len(prompt) > options.MAX_CHOICES and not isinstance(prompt[0], int):
            message = f"there may be at most {options.MAX_CHOICES} prompts, got {len(prompt)}"
            raise InvalidRequest(message, param="prompt", code="unsupported_parameter")
        if all(isinstance(item, str) for item in prompt):
            return tuple(tuple(tokenizer.encode(encodable(item, param="prompt"))) for item in prompt)
        if all(_are_token_ids(item, tokenizer) for item in prompt):
            return tuple(tuple(item) for item in prompt)
    raise InvalidRequest(
        f"prompt must be a string, a list of token ids in 0..{tokenizer.vocab_size - 1}, a list of strings, "
        f"or a list of lists of token ids, got {kind_of(prompt)}",
        param="prompt",
    )


def _are_token_ids(value: Any, tokenizer: Tokenizer) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in value)
    )


def _check_length(prompt: Sequence[int], *, max_seq_len: int, param: str) -> None:
    if not prompt:
        raise InvalidRequest("the prompt must have at least 1 token, got 0", param=param)
    if len(prompt) >= max_seq_len:
        raise InvalidRequest(  # clients such as litellm recognise this case by OpenAI's words
            f"This model's maximum context length is {max_seq_len} tokens, prompt and answer; "
            f"the prompt has {len(prompt)}",
            param=param,
            code="context_length_exceeded",
        )
