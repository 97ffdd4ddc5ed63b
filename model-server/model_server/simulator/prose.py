"""Generated text: reproducible sentences of common words. Knows nothing of requests.

Tokenizing any number of the yielded texts, joined, gives exactly the yielded ids.
"""

import random
from collections.abc import Iterator

from model_server.simulator.scheduler import Token
from model_server.simulator.template import END
from model_server.simulator.tokenizer import Tokenizer, pieces

_TEXT = """
a about above across after again against all almost along also although always among an and
another answer any anything are around as ask at away back balance be because become been before
began behind being believe below best better between beyond both bring build but by call came can
carry cause certain change choose city clear close cold come common complete consider continue
could country course cover cross current day decide deep describe develop did different direct
discover do does done door down during each early earth easy either end enough even evening ever
every example explain eye face fact family far feel few field figure find first follow for form
found four friend from full general get give go good government great ground group grow had half
hand happen hard has have he head hear heart help her here high him his hold home hope hour house
how however human hundred idea if important in increase inside interest into is island it its
just keep kind knew know land language large last late later learn leave left less let letter
life light like line listen little live long look lost made main make many mark matter may mean
measure might mind miss moment money more morning most mother mountain move much must name nature
near need never new next night no north not nothing notice now number object observe of off often
old on once one only open or order other our out over own page paper part pass pattern people
perhaps person picture place plain plan plant play point possible power present problem produce
product provide public pull question quick quiet quite rather reach read ready real reason record
remember rest result right river road rock room round rule run said same saw say school science
sea second see seem sentence serve set several she short should show side simple since size slow
small so some something sometimes song soon sound south space stand start state stay step still
stood stop story street strong study such sure surface system table take talk teach tell than
that the their them then there these they thing think this those though thought thousand through
time to together told too took top toward travel tree true try turn two under understand unit
until up upon us use usual valley very voice wait walk want warm was watch water way we weather
week well went were west what wheel when where whether which while white who whole why will wind
winter with within without woman wonder word work world would write year yet you young
"""
_WORDS = _TEXT.split()


class Writer:
    """Writes answers; the same seed gives the same answer on every server."""

    def __init__(self, tokenizer: Tokenizer, mean_tokens: int) -> None:
        self._mean_tokens = mean_tokens
        self._openers = [_tokens(tokenizer, word) for word in _WORDS]
        self._words = [_tokens(tokenizer, f" {word}") for word in _WORDS]
        self._stop = _tokens(tokenizer, ".")
        self._end = Token(END, "", last=True)

    def write(self, seed: bytes, *, endless: bool, at_least: int = 0) -> Iterator[Token]:
        """Tokens of one answer: between half and one and a half times the mean length.

        The end-of-sequence token counts and comes last; an `endless` answer has none. It comes
        after `at_least` others.
        """
        rng = random.Random(seed)
        # vLLM `v1/sample/logits_processor/builtin.py` masks it until there are `min_tokens`.
        natural = max(at_least + 1, round(self._mean_tokens * rng.uniform(0.5, 1.5)))
        for written, token in enumerate(self._sentences(rng), start=1):
            if written >= natural and not endless:
                break
            yield token
        yield self._end

    def _sentences(self, rng: random.Random) -> Iterator[Token]:
        yield from rng.choice(self._openers)
        while True:
            for word in rng.choices(self._words, k=rng.randint(6, 18)):
                yield from word
            yield from self._stop


def _tokens(tokenizer: Tokenizer, text: str) -> tuple[Token, ...]:
    return tuple(Token(tokenizer.token(piece), piece) for piece in pieces(text))
