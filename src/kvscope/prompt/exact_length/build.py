"""A prompt of exactly so many tokens, as the server itself counts them, chat template included.

Tokens do not add up at joints, so nothing is computed: each candidate is counted whole, and the next one is chosen from
the answer. First the number of words is found at which the length is almost reached, then the rest is closed with
spaced dots. Then it is seen where the key sentence came to stand, and it is moved if another joint is nearer to where
it was wanted. About a dozen counts are needed, whatever the length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvscope.errors import BadDesign, PromptLengthUnreachable, UsageError
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.exact_length.draft import FRAMES, LABEL_LENGTH, OWN_FRAMES, Draft, DraftText, Frame
from kvscope.prompt.exact_length.search import Count, Counter, largest_within, no_convergence, one_message
from kvscope.prompt.exact_length.source_text import SourceText, load_source_text

MIDDLE = 50.0
# How many words to give back, one at a time, when the dots alone do not close a gap.
_WORDS_GIVEN_BACK = 6
# A gap of so many tokens is closed with dots at once instead of searching on for the last word.
_DOTS_AT_ONCE = 6
_MOST_MOVES = 4
# First guesses only; the search corrects them. Measured with a tokenizer made for English.
_TOKENS_A_WORD = {"en": 1.4, "ko": 8.0, "code": 4.0}

# A text and places in it (in characters): the tokens of the whole prompt before each; None where that is not known.
Locate = Callable[[str, Sequence[int]], Sequence[int] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPosition:
    """Where the key sentence stands. ``tokens_before`` are all tokens of the prompt before it, template, BOS and
    instruction included, and ``tokens`` its own; both None where only counts of whole texts can be had, which do not
    add up at joints. ``percent`` is how far down it stands among the tokens of the text around it, instruction and
    request not included: 0 before all of it, 100 behind it, None where there is none. ``asked_percent`` is where it was
    wanted."""

    tokens_before: int | None
    tokens: int | None
    percent: float | None
    asked_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPrompt:
    """``prompt_tokens`` is what the count said of ``messages``. ``template_tokens`` is its answer to an empty message:
    what the chat template (of a raw text: BOS) costs by itself. ``frame`` tells how much instruction there was room for
    (full, short, minimal; bare: none, and no key sentence; empty: no text). ``key_sentence`` is None where there was no
    room for it, and ``no_key_because`` then says so. ``count_calls`` is the number of questions it took."""

    messages: tuple[Message, ...]
    prompt_tokens: int
    template_tokens: int
    key_sentence: str | None
    no_key_because: str | None
    key_position: KeyPosition | None
    language: str
    seed: int
    frame: str
    count_calls: int
    is_raw: bool = False

    @property
    def text(self) -> str:
        """What the user says, or the raw text."""
        return self.messages[0].content

    @property
    def characters(self) -> int:
        """Unicode code points of the contents."""
        return Conversation(messages=self.messages).characters

    @property
    def bytes(self) -> int:
        """Bytes of the contents in UTF-8."""
        return Conversation(messages=self.messages).bytes

    def to_dict(self) -> dict[str, object]:
        """All of it but the text itself."""
        position = self.key_position
        return {
            "prompt_tokens": self.prompt_tokens,
            "template_tokens": self.template_tokens,
            "raw": self.is_raw,
            "characters": self.characters,
            "bytes": self.bytes,
            "language": self.language,
            "seed": self.seed,
            "frame": self.frame,
            "key_sentence": self.key_sentence,
            "no_key_because": self.no_key_because,
            "key_tokens_before": None if position is None else position.tokens_before,
            "key_tokens": None if position is None else position.tokens,
            "key_percent": None if position is None else position.percent,
            "key_percent_asked": None if position is None else position.asked_percent,
        }


def build_prompt(
    *,
    prompt_tokens: int,
    count: Count,
    language: str = "en",
    seed: int,
    salt: str = "",
    source: SourceText | None = None,
    key_sentence: str | None = None,
    key_percent: float | None = None,
    is_raw: bool = False,
    locate: Locate | None = None,
) -> ExactPrompt:
    """One user message, or with ``is_raw`` one text without a chat template, that ``count`` finds to be exactly
    ``prompt_tokens`` long.

    ``language`` is "en", "ko" or "code", the bundled text; ``source`` is a text of one's own instead. The same
    arguments give the same text; another seed, salt or length gives other sentences in another order behind another
    first word. The key sentence is the language's own, or ``key_sentence``, and stands ``key_percent`` (0 to 100) down
    the text, by default in the middle. Where there is no room for it the prompt goes without, unless one of the two was
    given; ``locate`` (as TextCount.tokens_before) makes its position exact. ``count`` is asked for lists of one user
    message; of a raw text it shall count the content and BOS. A raw prompt that is BOS alone has the empty text.

    Raises PromptLengthUnreachable when the length is too short for the template and one token, or for a key sentence
    that was asked for (the message says how much they need), or when no text of that length was found; UnknownName for
    another language; BadDesign for a length below 1 or a place that is none. Errors of ``count`` pass through.
    """
    source = source or load_source_text(language)
    wish = _Wish(prompt_tokens, source, seed, salt, key_sentence, key_percent, is_raw)
    wish.check()
    return _Builder(wish, Counter(count, prompt_tokens), locate).build()


@dataclass(frozen=True, slots=True)
class _Wish:
    prompt_tokens: int
    source: SourceText
    seed: int
    salt: str
    key_sentence: str | None
    key_percent: float | None
    is_raw: bool

    def check(self) -> None:
        if self.prompt_tokens < 1:
            raise BadDesign(
                f"A prompt of {self.prompt_tokens} tokens cannot be built.", hint="Ask for a positive number."
            )
        if self.key_percent is not None and not 0 <= self.key_percent <= 100:
            raise BadDesign(f"{self.key_percent:g} % is no place in a text.", hint="Use 0 (start) to 100 (end).")
        if self.key_sentence is not None and (self.key_sentence.strip() != self.key_sentence or not self.key_sentence):
            raise UsageError("The key sentence is empty, or spaces are around it.", hint="Give it without them.")
        if self.key_sentence is not None and not self.key_sentence.isprintable():
            raise UsageError("The key sentence holds line ends or other control characters.", hint="One plain line.")
        if all(self.key in sentence for sentence in self.source.sentences):
            raise UsageError("Beside the key sentence there is nothing in the text.", hint="Use more text.")

    @property
    def key(self) -> str:
        return self.source.key_sentence if self.key_sentence is None else self.key_sentence

    @property
    def key_required(self) -> bool:
        return self.key_sentence is not None or self.key_percent is not None

    @property
    def percent(self) -> float:
        return MIDDLE if self.key_percent is None else self.key_percent

    @property
    def frames(self) -> tuple[Frame, ...]:
        frames = (FRAMES if self.source.name is None else OWN_FRAMES)[self.source.language]
        return tuple(frame for frame in frames if frame.has_key or not self.key_required)

    def draft(self) -> Draft:
        variant = draft_variant(self.source.language, self.prompt_tokens, self.salt)
        return Draft(self.source, seed=self.seed, variant=variant, key_sentence=self.key_sentence)


def draft_variant(language: str, prompt_tokens: int, salt: str) -> str:
    """What makes the texts of one seed differ: see ``Draft`` and ``label``."""
    return f"{language}|{prompt_tokens}|{salt}"


class _Builder:
    def __init__(self, wish: _Wish, counter: Counter, locate: Locate | None) -> None:
        self.wish = wish
        self.counter = counter
        self.locate = locate
        self.target = wish.prompt_tokens
        self.draft = wish.draft()

    def build(self) -> ExactPrompt:
        template_tokens = self.counter.tokens("")
        no_key = "So short a prompt leaves no room for the key sentence and an instruction."
        if self.wish.is_raw and template_tokens == self.target and not self.wish.key_required:
            return self._prompt("", "empty", no_key)
        shortest = 0
        for frame in self.wish.frames:
            shortest = self.counter.tokens(self.draft.text(frame, num_words=0).text)
            if shortest > self.target:
                continue
            found = self._fill(frame, self.wish.percent / 100)
            if found is None and frame.has_key:
                no_key = f"No text of exactly {self.target} tokens with the key sentence in it was found."
            elif found is not None and not frame.has_key:
                return self._prompt(found.text, frame.name, no_key)
            elif found is not None:
                placed = self._place(frame, found)
                return self._prompt(placed.text, frame.name, None, self._position(placed, self.locate))
        if shortest <= self.target:
            raise no_convergence(self.target, self.counter.calls)
        if self.wish.key_required:
            raise self._no_room_for_key(template_tokens, shortest)
        return self._prompt(self._one_token(template_tokens), "bare", no_key)

    def _one_token(self, template_tokens: int) -> str:
        """A character that is one token where the label's own is two, as a digit is to some vocabularies."""
        least = template_tokens if self.wish.is_raw and template_tokens else None
        for character in self.draft.single_characters():
            tokens = self.counter.tokens(character)
            if tokens == self.target:
                return character
            least = tokens if least is None else min(least, tokens)
        what = "BOS" if self.wish.is_raw else "the chat template"
        raise PromptLengthUnreachable(
            f"{self.target} tokens are too few: {what} takes {template_tokens}; the least possible is {least}.",
            hint=f"Ask for {least} tokens or more.",
        )

    def _prompt(
        self, text: str, frame: str, no_key_because: str | None, position: KeyPosition | None = None
    ) -> ExactPrompt:
        self.counter.check_again(text)
        wish = self.wish
        return ExactPrompt(
            messages=one_message(text),
            prompt_tokens=self.target,
            template_tokens=self.counter.tokens(""),
            key_sentence=wish.key if no_key_because is None else None,
            no_key_because=no_key_because,
            key_position=position,
            language=wish.source.language,
            seed=wish.seed,
            frame=frame,
            count_calls=self.counter.calls,
            is_raw=wish.is_raw,
        )

    def _no_room_for_key(self, template_tokens: int, shortest: int) -> PromptLengthUnreachable:
        what = "BOS" if self.wish.is_raw else "the chat template"
        # Labels cost one token to one a character, so the next length may need a little more than this one.
        safe = shortest + LABEL_LENGTH - 1
        return PromptLengthUnreachable(
            f"{self.target} tokens are too few: {what} takes {template_tokens}, and with the key sentence and the "
            f"shortest instruction it is {shortest}.",
            hint=f"Ask for {safe} tokens or more, or for no key sentence and no place of it.",
        )

    def _fill(self, frame: Frame, place: float, like: DraftText | None = None) -> DraftText | None:
        """The text in ``frame`` that counts to the target, or None. ``like``: one with the key sentence elsewhere."""

        def tokens_of_words(words: int) -> int:
            return self.counter.tokens(self.draft.text(frame, num_words=words, key_place=place).text)

        slope = _TOKENS_A_WORD[self.wish.source.language]
        if like is not None and like.num_words and self.target > tokens_of_words(0):
            slope = (self.target - tokens_of_words(0)) / like.num_words
        most_words = largest_within(tokens_of_words, self.target, slope, slack=_DOTS_AT_ONCE)
        if most_words is None:
            raise no_convergence(self.target, self.counter.calls)
        for words in range(most_words, max(most_words - _WORDS_GIVEN_BACK, 0) - 1, -1):
            for opening in self.draft.openings(frame):
                found = self._close(frame, place, words, opening)
                if found is not None:
                    return found
        return None

    def _close(self, frame: Frame, place: float, num_words: int, opening: str) -> DraftText | None:
        """The text with the number of dots that makes it count to the target, or None."""

        def text(num_dots: int) -> DraftText:
            return self.draft.text(frame, num_words=num_words, key_place=place, num_dots=num_dots, opening=opening)

        def tokens_of_dots(num_dots: int) -> int:
            return self.counter.tokens(text(num_dots).text)

        if tokens_of_dots(0) > self.target:
            return None
        num_dots = largest_within(tokens_of_dots, self.target, 1.0)
        return text(num_dots) if num_dots is not None and tokens_of_dots(num_dots) == self.target else None

    def _place(self, frame: Frame, found: DraftText) -> DraftText:
        """Of all the joints that the key sentence can stand in, the nearest to where it is wanted, as far as a few
        moves find it. By characters it is almost there.

        Judged by counts alone, so that the text is the same whether its position can be located or not."""
        wanted = self.wish.percent
        place = wanted / 100
        best = latest = found
        percent = self._position(found).percent
        least_miss = 100.0 if percent is None else abs(percent - wanted)
        tried = {found.key_begins}
        for _ in range(_MOST_MOVES):
            if percent is None:
                break
            place = min(max(place + (wanted - percent) / 100, 0.0), 1.0)
            if self.draft.text(frame, num_words=latest.num_words, key_place=place).key_begins in tried:
                break
            moved = self._fill(frame, place, latest)
            if moved is None or moved.key_begins in tried:
                break
            tried.add(moved.key_begins)
            latest, percent = moved, self._position(moved).percent
            if percent is not None and abs(percent - wanted) < least_miss:
                best, least_miss = latest, abs(percent - wanted)
        return best

    def _position(self, found: DraftText, locate: Locate | None = None) -> KeyPosition:
        assert found.key_begins is not None
        assert found.key_ends is not None
        # A token may begin with the space before its word: it is the word's.
        begins = len(found.text[: found.key_begins].rstrip())
        body_begins = min(len(found.text[: found.body_begins].rstrip()), begins)
        places = (body_begins, begins, found.key_ends, found.body_ends)
        located = None if locate is None else locate(found.text, places)
        tokens = located or [self.counter.tokens(found.text[:place]) for place in places]
        before, key, after = (later - earlier for earlier, later in pairwise(tokens))
        return KeyPosition(
            tokens_before=tokens[1] if located else None,
            tokens=key if located else None,
            percent=100 * before / (before + after) if before + after > 0 else None,
            asked_percent=self.wish.percent,
        )
