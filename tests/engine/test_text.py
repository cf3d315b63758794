"""Text decoded in pieces equals the text decoded at once, however the token ids are split into pieces."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.text import TextStream
from engine.tokenizer import Tokenizer as EngineTokenizer

without_deadline = settings(deadline=None)  # a busy machine must not cause a failure

SPECIAL = ["<|end|>", "<|start|>"]


def byte_level_tokenizer() -> EngineTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "c"), ("Ã", "©"), ("ð", "Ł")]  # the last merge joins two of the four bytes of an emoji
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *("".join(pair) for pair in merges)])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return EngineTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:])
    )


def byte_fallback_tokenizer() -> EngineTokenizer:
    """Makes a tokenizer like that of Llama 2: "▁" is a space, and characters without a token are encoded as bytes."""
    pieces = ["a", "b", "▁", "▁a", "ab", "é"]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *(f"<0x{i:02X}>" for i in range(256)), *pieces])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("▁", "a")], byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("(?!)"), behavior="isolated")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return EngineTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:])
    )


TOKENIZERS = {"byte level": byte_level_tokenizer(), "byte fallback": byte_fallback_tokenizer()}
BYTE_LEVEL = TOKENIZERS["byte level"]


@st.composite
def ids_and_splits(draw: st.DrawFn) -> tuple[EngineTokenizer, list[int], list[int]]:
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]
    random_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=24)
    # Random ids mostly decode to invalid characters, so ids of encoded text are drawn, too.
    texts = st.text("abc é漢👩‍👧\n", max_size=12).map(tokenizer.encode)
    ids = draw(st.one_of(random_ids, texts, st.tuples(texts, random_ids).map(lambda pair: pair[0] + pair[1])))
    return tokenizer, ids, draw(st.lists(st.integers(1, 5), min_size=len(ids), max_size=len(ids)))


def pieces_of(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(list(ids[start : start + size]))
        start += size
    return [piece for piece in pieces if piece]


def stream_text(stream: TextStream, pieces: Sequence[Sequence[int]]) -> str:
    text = "".join(stream.push(piece) for piece in pieces)
    return text + stream.finish()


def cut_at_first_complete(text: str, stop: Sequence[str]) -> str:
    """Cuts the text before the stop string that is completed first. Checks character by character."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@without_deadline
@given(ids_and_splits())
def test_the_pieces_of_text_add_up_to_the_text_decoded_at_once(
    case: tuple[EngineTokenizer, list[int], list[int]],
) -> None:
    tokenizer, ids, sizes = case
    stream = TextStream(tokenizer)

    text = stream_text(stream, pieces_of(ids, sizes))

    assert text == tokenizer.decode(ids)
    assert stream.text == text
    assert stream.num_tokens == len(ids)


@without_deadline
@given(ids_and_splits(), st.lists(st.text("abc é漢�", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_stop_string_that_is_completed_first(
    case: tuple[EngineTokenizer, list[int], list[int]], stop: list[str]
) -> None:
    tokenizer, ids, sizes = case
    stream = TextStream(tokenizer, stop=stop)

    text = stream_text(stream, pieces_of(ids, sizes))

    assert text == cut_at_first_complete(tokenizer.decode(ids), stop)


@without_deadline
@given(ids_and_splits(), st.lists(st.text("abc é", min_size=1, max_size=3), min_size=1, max_size=2))
def test_the_number_of_tokens_and_their_offsets_do_not_depend_on_the_pieces(
    case: tuple[EngineTokenizer, list[int], list[int]], stop: list[str]
) -> None:
    tokenizer, ids, sizes = case
    in_pieces, one_by_one = TextStream(tokenizer, stop=stop), TextStream(tokenizer, stop=stop)

    stream_text(in_pieces, pieces_of(ids, sizes))
    stream_text(one_by_one, [[i] for i in ids])

    assert in_pieces.num_tokens == one_by_one.num_tokens
    assert in_pieces.token_starts == one_by_one.token_starts
    assert in_pieces.stopped == one_by_one.stopped


class CountingTokenizer:
    """Counts the token ids that are decoded."""

    def __init__(self, tokenizer: EngineTokenizer) -> None:
        self._tokenizer = tokenizer
        self.text_is_utf8 = tokenizer.text_is_utf8
        self.is_special, self.is_byte = tokenizer.is_special, tokenizer.is_byte
        self.num_ids = 0

    def decode(self, token_ids: Sequence[int]) -> str:
        self.num_ids += len(token_ids)
        return self._tokenizer.decode(token_ids)

    def text_bytes(self, token_id: int) -> bytes:
        self.num_ids += 1
        return self._tokenizer.text_bytes(token_id)


BYTES = [BYTE_LEVEL.vocabulary().index(bytes([byte])) for byte in range(256)]
RUNS = {
    "first bytes of an emoji": (BYTE_LEVEL, [BYTES[0xF0]]),
    "emojis that lack a byte": (BYTE_LEVEL, [BYTES[byte] for byte in (0xF0, 0x9F, 0x98)]),
    "continuation bytes": (BYTE_LEVEL, [BYTES[0x80]]),
    "characters U+FFFD": (BYTE_LEVEL, [BYTES[byte] for byte in "\ufffd".encode()]),
    "special tokens": (BYTE_LEVEL, [1]),
    "raw bytes": (TOKENIZERS["byte fallback"], [2 + 0xF0]),
    "special tokens between raw bytes": (TOKENIZERS["byte fallback"], [2 + 0x80, 1, 1]),
    "special tokens of a tokenizer with raw bytes": (TOKENIZERS["byte fallback"], [1]),
    "words": (TOKENIZERS["byte fallback"], TOKENIZERS["byte fallback"].encode(" a b")),
}


@pytest.mark.parametrize(("tokenizer", "pattern"), RUNS.values(), ids=RUNS.keys())
def test_the_number_of_decoded_ids_grows_linearly_with_the_answer(
    tokenizer: EngineTokenizer, pattern: list[int]
) -> None:
    ids = (pattern * 2000)[:2000]
    counting = CountingTokenizer(tokenizer)
    stream = TextStream(counting, per_token=True)

    shown = stream_text(stream, [[token] for token in ids])

    assert shown == tokenizer.decode(ids)
    assert counting.num_ids <= 6 * len(ids)


@without_deadline
@given(
    st.lists(
        st.sampled_from([*(BYTES[b] for b in b"\xf0\x9f\x98\x80\xe2\x82\xac\xed\xa0\xef\xbf\xbda"), 1]), max_size=80
    )
)
def test_broken_characters_are_decoded_as_by_the_tokenizer(ids: list[int]) -> None:
    assert stream_text(TextStream(BYTE_LEVEL), [[token] for token in ids]) == BYTE_LEVEL.decode(ids)


def test_added_tokens_are_decoded_as_by_the_tokenizer() -> None:
    raw = byte_level_tokenizer()._tokenizer
    raw.add_tokens(["<tool>", "é", "漢"])
    tokenizer = EngineTokenizer(raw)
    ids = [*range(tokenizer.vocab_size - 3, tokenizer.vocab_size), *tokenizer.encode("aé")]

    assert stream_text(TextStream(tokenizer), [[token] for token in ids]) == tokenizer.decode(ids)


@without_deadline
@given(ids_and_splits())
def test_returned_text_is_always_a_prefix_of_the_decoded_text(
    case: tuple[EngineTokenizer, list[int], list[int]],
) -> None:
    tokenizer, ids, sizes = case
    stream, pushed = TextStream(tokenizer), []

    for piece in pieces_of(ids, sizes):
        stream.push(piece)
        pushed += piece
        assert tokenizer.decode(pushed).startswith(stream.text)


def test_an_incomplete_character_is_held_back() -> None:
    emoji = BYTE_LEVEL.encode("👩")
    assert len(emoji) == 3  # one of the tokens stands for two of the four bytes
    stream = TextStream(BYTE_LEVEL)

    assert [stream.push([token]) for token in emoji] == ["", "", "👩"]


def test_an_incomplete_character_at_the_end_becomes_a_replacement_character() -> None:
    stream = TextStream(BYTE_LEVEL)

    assert stream.push(BYTE_LEVEL.encode("a👩")[:2]) == "a"
    assert stream.finish() == "\ufffd"


def test_invalid_bytes_become_replacement_characters_but_the_last_byte_is_held_back() -> None:
    lone = BYTE_LEVEL.encode("👩")[-1]  # a continuation byte without a first byte
    stream = TextStream(BYTE_LEVEL)

    assert stream.push([lone, lone, lone]) == "\ufffd\ufffd"


def test_bytes_of_a_byte_fallback_tokenizer_are_held_back_until_another_token_follows() -> None:
    tokenizer = TOKENIZERS["byte fallback"]
    acute = [2 + byte for byte in "é".encode()]  # the vocabulary begins with two special tokens
    stream = TextStream(tokenizer)

    assert [stream.push([token]) for token in acute] == ["", ""]
    assert stream.push(tokenizer.encode("b")) == "éb"


def test_a_special_token_has_no_text() -> None:
    stream = TextStream(BYTE_LEVEL)

    assert stream.push([*BYTE_LEVEL.encode("a"), 1, *BYTE_LEVEL.encode("b")]) == "ab"


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_ruled_out() -> None:
    stream = TextStream(BYTE_LEVEL, stop=["bcd"])

    assert stream.push(BYTE_LEVEL.encode("ab")) == "a"
    assert stream.push(BYTE_LEVEL.encode("c")) == ""
    assert stream.push(BYTE_LEVEL.encode("x")) == "bcx"
    assert not stream.stopped


def test_a_stop_string_that_spans_several_pieces_ends_the_text() -> None:
    stream = TextStream(BYTE_LEVEL, stop=["b c"])

    text = stream_text(stream, [BYTE_LEVEL.encode(piece) for piece in ("xb", " ", "cde", "f")])

    assert text == "x"
    assert stream.num_tokens == 4  # x, b, space, c; later tokens are not counted


def test_if_one_character_completes_several_stop_strings_the_longest_is_cut_off() -> None:
    stream = TextStream(BYTE_LEVEL, stop=["c", "abc"])

    assert stream.push(BYTE_LEVEL.encode("xabcd")) == "x"


def test_the_beginning_of_a_stop_string_at_the_end_of_the_answer_is_returned() -> None:
    stream = TextStream(BYTE_LEVEL, stop=["stop"])

    assert stream.push(BYTE_LEVEL.encode("a sto")) == "a "
    assert stream.finish() == "sto"


def test_tokens_after_a_stop_string_are_ignored() -> None:
    stream = TextStream(BYTE_LEVEL, stop=["b"])
    stream.push(BYTE_LEVEL.encode("ab"))  # one token

    assert stream.push(BYTE_LEVEL.encode("more")) == ""
    assert stream.finish() == ""
    assert stream.text == "a"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        TextStream(BYTE_LEVEL, stop=["a", ""])
