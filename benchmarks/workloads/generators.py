"""Generates the prompts of workloads that resemble the traffic of a service. Equal seeds give equal prompts.

    extraction   a business letter or an invoice, of which the model returns fields
    chat         a message in a social app, which the model answers in the voice of a persona
    screening    a job and a résumé, which the model compares
    code         the description of a function, which the model writes
    json         records in a sentence, which the model returns as JSON
    problems     grade-school word problems (examples/prompts.py)

Names, addresses and the like come from Faker. The prompts of a workload share their instructions and vary in their
facts, like the prompts of a real service.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from datetime import date

from faker import Faker

from examples.prompts import prompt_sets

_NUM_PROBLEMS = 4096
_DATES = (date(2020, 1, 1), date(2026, 12, 31))  # Faker's default ends today


def prompts(workload: str, count: int, *, seed: int) -> list[str]:
    """Returns `count` distinct prompts. Raises: KeyError: there is no such workload; ValueError: too few prompts."""
    found: dict[str, None] = {}
    make = WORKLOADS[workload]
    for number, prompt in enumerate(make(seed)):
        if len(found) == count:
            break
        if number > 20 * count:
            raise ValueError(f"the workload {workload} has fewer than {count} distinct prompts")
        found[prompt] = None
    if len(found) < count:
        raise ValueError(f"the workload {workload} has only {len(found)} distinct prompts, not {count}")
    return list(found)


def _extraction(seed: int) -> Iterator[str]:
    fake, rng = _sources(seed)
    while True:
        items = [(fake.bs().title(), rng.randint(1, 20), rng.randint(5, 900)) for _ in range(rng.randint(2, 4))]
        lines = "\n".join(f"{name}, {count} x {price}.00 EUR" for name, count, price in items)
        document = (
            f"{fake.company()}\n{fake.street_address()}, {fake.city()}\n\nInvoice {fake.bothify('??-#####').upper()}\n"
            f"Date: {fake.date_between_dates(*_DATES)}\nCustomer: {fake.name()}, {fake.company()}\n\n{lines}\n"
            f"Total: {sum(count * price for _, count, price in items)}.00 EUR\n"
            f"Payable within {rng.choice((14, 30, 60))} days to account {fake.iban()}."
        )
        yield (
            "Read the invoice and list these fields, one per line: seller, invoice number, date, customer, each item"
            f" with its count and price, total, days until payment, account.\n\n{document}"
        )


def _chat(seed: int) -> Iterator[str]:
    fake, rng = _sources(seed)
    moods = ("had a long day", "is excited about a trip", "is bored", "is nervous about an exam", "misses a friend")
    topics = ("cooking", "music", "football", "gardening", "films", "hiking", "photography", "board games")
    while True:
        persona, user = fake.first_name(), fake.first_name()
        topic = rng.choice(topics)
        yield (
            f"You are {persona}, {rng.randint(19, 60)}, a {fake.job().lower()} from {fake.city()} who loves {topic}."
            f" Answer {user}'s message in two or three friendly sentences and end with a question.\n\n"
            f"{user}, who {rng.choice(moods)}: Hi {persona}! I have started with {rng.choice(topics)}"
            f" {rng.choice(('last week', 'yesterday', 'a month ago', 'as a child'))}"
            f" and {rng.choice(('love it', 'find it hard', 'need some advice', 'cannot stop'))}. What do you think?"
        )


_SKILLS = (
    "Python",
    "SQL",
    "Java",
    "accounting",
    "negotiation",
    "welding",
    "nursing",
    "Excel",
    "teaching",
    "Kubernetes",
)


def _screening(seed: int) -> Iterator[str]:
    fake, rng = _sources(seed)
    while True:
        wanted, present = rng.sample(_SKILLS, 3), rng.sample(_SKILLS, 4)
        years = sorted(rng.sample(range(2001, 2026), 4))
        jobs = "\n".join(f"{start}-{end}: {fake.job()} at {fake.company()}" for start, end in itertools.pairwise(years))
        yield (
            "Compare the résumé with the job. State for each requirement whether it is met and where the résumé says"
            " so. Then give a score from 1 to 10 with one sentence of reasons.\n\n"
            f"Job: {fake.job()}, {fake.city()}. Requirements: {', '.join(wanted)}; {rng.randint(2, 10)} years of"
            f" experience.\n\nRésumé of {fake.name()}\n{jobs}\nSkills: {', '.join(present)}\n"
            f"Languages: English, {rng.choice(('German', 'Spanish', 'Hindi', 'French', 'Polish'))}"
        )


def _code(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    actions = (
        ("returns the {rank} largest number of a list", "the list is too short"),
        ("counts the words of a text that have more than {number} letters", "the text is empty"),
        ("splits a list into parts of at most {number} elements", "the size is not positive"),
        ("returns the numbers below n that are divisible by {number}", "n is negative"),
        ("removes every {rank} element of a list", "the list is empty"),
        ("converts seconds into hours, minutes and seconds and adds {number} minutes", "the value is negative"),
        ("groups strings by their first {number} characters", "a string is too short"),
        ("computes the average of a list without its {number} smallest numbers", "nothing remains"),
    )
    endings = ("Add a docstring and one example.", "Use type annotations.", "Then write two assertions.")
    ranks = ("second", "third", "fourth", "fifth", "sixth", "seventh")
    while True:
        what, case = rng.choice(actions)
        what = what.format(rank=rng.choice(ranks), number=rng.randint(2, 40))
        yield (
            f"Write a Python function {rng.choice(('solve', 'compute', 'transform', 'process'))} that {what}."
            f" If {case}, raise {rng.choice(('ValueError', 'IndexError'))}. {rng.choice(endings)}"
        )


def _json(seed: int) -> Iterator[str]:
    fake, rng = _sources(seed)
    while True:
        people = [(fake.name(), rng.randint(18, 80), fake.city(), fake.email()) for _ in range(rng.randint(2, 4))]
        text = " ".join(
            f"{name} is {age} years old, lives in {city} and can be reached at {email}."
            for name, age, city, email in people
        )
        yield (
            'Return the people in the text as a JSON array of objects with the keys "name", "age", "city" and "email".'
            f" Return nothing else.\n\n{text}"
        )


def _problems(seed: int) -> Iterator[str]:
    yield from prompt_sets(0, _NUM_PROBLEMS, seed=seed).held_out


def _sources(seed: int) -> tuple[Faker, random.Random]:
    fake = Faker("en_US")
    fake.seed_instance(seed)
    return fake, random.Random(seed)


WORKLOADS: dict[str, Callable[[int], Iterator[str]]] = {
    "extraction": _extraction,
    "chat": _chat,
    "screening": _screening,
    "code": _code,
    "json": _json,
    "problems": _problems,
}
