"""Claims that our engine is at least a given number of times as fast as another arm (benchmarks/arms.py defines
arms)."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.arms import OURS, PLAIN
from benchmarks.samples import Samples, Spread
from benchmarks.workload import WITHOUT_WEIGHTS

_SMALL_UNCERTAINTY = 0.01  # relative to the ratio; with a smaller uncertainty no more rounds are needed
OUR_PLAIN = f"{OURS} {PLAIN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    text: str
    batch_size: int
    at_least: float  # the required ratio of the speed in `arms` to the speed in `over`
    arms: tuple[str, ...]  # arms of our engine; the fastest must reach the ratio, or all of them if `each`
    over: tuple[str, ...]  # arms to compare with; only the fastest of them counts
    each: bool = False
    aim: float | None = None  # a higher ratio that is desired but not required


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    claim: Claim
    arm: str | None  # the fastest of the claim's arms, or the slowest if `each`
    over: str | None  # the arm that `arm` was compared with
    ratio: Spread | None  # None: an arm that the claim needs was not measured

    @property
    def status(self) -> str:
        if self.ratio is None:
            return "NOT MEASURED"
        return "PASS" if self.ratio.median >= self.claim.at_least else "FAIL"

    @property
    def is_settled(self) -> bool:
        """Whether more rounds would hardly change the status."""
        if self.ratio is None:
            return True
        uncertainty = self.ratio.uncertainty
        is_clear = abs(self.ratio.median - self.claim.at_least) > uncertainty
        return is_clear or uncertainty < _SMALL_UNCERTAINTY * self.ratio.median


def claims(our_arms: Sequence[str], batch_sizes: Sequence[int]) -> list[Claim]:
    """Returns the claims for these batch sizes. `our_arms`: names of all arms of our engine that run."""
    without_weights = tuple(f"{OURS} {drafter}" for drafter in WITHOUT_WEIGHTS)
    speculative = tuple(arm for arm in our_arms if not arm.startswith(OUR_PLAIN))
    trained = tuple(arm for arm in speculative if arm not in without_weights)
    all_claims = [
        Claim(
            text="plain decoding against vLLM's",
            batch_size=batch_size,
            at_least=at_least,
            aim=aim,
            arms=(OUR_PLAIN,),
            over=_vllm_arms(PLAIN),
        )
        for batch_size, at_least, aim in ((1, 1.0, 1.2), (8, 1.2, None), (16, 1.2, None))
    ]
    all_claims += [
        Claim(
            text="faster of ngram and suffix against vLLM's ngram",
            batch_size=1,
            at_least=1.3,
            arms=without_weights,
            over=_vllm_arms("ngram"),
        ),
        Claim(
            text="best trained speculator, on prompts like its training data, against our plain decoding",
            batch_size=1,
            at_least=2.0,
            arms=trained,
            over=(OUR_PLAIN,),
        ),
    ]
    all_claims += [
        Claim(
            text="each drafter with adaptive budget against our plain decoding",
            batch_size=batch_size,
            at_least=0.98,
            arms=speculative,
            over=(OUR_PLAIN,),
            each=True,
        )
        for batch_size in batch_sizes
    ]
    return [claim for claim in all_claims if claim.batch_size in batch_sizes]


def _vllm_arms(drafter: str) -> tuple[str, ...]:
    return (f"vllm {drafter}", f"vllm {drafter} own threads")


def judge(claim: Claim, samples: Samples) -> Verdict:
    over = samples.fastest(claim.over, claim.batch_size)
    ratios = [(arm, samples.ratio(arm, over, claim.batch_size)) for arm in claim.arms] if over else []
    measured = [(arm, ratio) for arm, ratio in ratios if ratio is not None]
    if not measured or (claim.each and len(measured) < len(ratios)):
        return Verdict(claim=claim, arm=None, over=over, ratio=None)
    choose = min if claim.each else max
    arm, ratio = choose(measured, key=lambda pair: pair[1].median)
    return Verdict(claim=claim, arm=arm, over=over, ratio=ratio)
