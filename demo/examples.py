"""Training examples of the tiny model, questions with answers, and their chat format.

Prompts combine openings, questions and closings, so that a user's own wording is likely close to one of them.
Companies are of the `train` split of `demo.names`, and of invented nouns that the demo split does not have.

Imports the standard library only.
"""

from __future__ import annotations

import json
import random
import re
from typing import NamedTuple

from demo.names import DATA, LABELS, Company, companies, proper_nouns

SYSTEM_PROMPT = "You infer a company's industry."
PROMPT = "What industry is this company in: {Company}"
"""The demo's prompt. Training has most examples of it; similar ones work too."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
END, PAD, ANSWER = "<|end|>", "<|pad|>", "<|assistant|>"
SPECIAL_TOKENS = (PAD, END, "<|system|>", "<|user|>", ANSWER)
"""In the order of their ids, from 0."""


class Example(NamedTuple):
    """One chat as rendered text. With `opening_forced` the first token of the answer is given, not learnt."""

    prompt: str
    answer: str
    opening_forced: bool


def examples(rng: random.Random, count: int) -> list[Example]:
    """Returns `count` examples about companies of the `train` split."""
    nouns = invented_nouns(rng)
    return [example(rng, company) for company in companies(rng, count, split="train", more_nouns=nouns)]


def example(rng: random.Random, company: Company) -> Example:
    """Returns a question about the company in one of the wordings, and its answer."""
    system = rng.choices((SYSTEM_PROMPT, None, rng.choice(_SYSTEM_PROMPTS)), (5, 2, 3))[0]
    prompt = PROMPT
    if rng.random() < 0.65:
        prompt = rng.choice(_OPENINGS) + rng.choice(_QUESTIONS) + rng.choice(_CLOSINGS)
        prompt = re.sub("{Place}", lambda _: rng.choice(_PLACES), prompt)
    answer = company.industry
    form = rng.random()
    if form < 0.2:
        fields: dict[str, object] = {"industry": company.industry, "confidence": "high"}
        if form < 0.03:
            fields = {rng.choice(_OTHER_KEYS): company.industry, **rng.choice(_OTHER_FIELDS)}
        answer = json.dumps(fields)
    # A plain question may get JSON, but only where an output schema forces the brace.
    opening_forced = form < 0.09
    if 0.09 <= form < 0.2:
        prompt += rng.choice(_JSON_REQUESTS)
    return Example(render(prompt.replace("{Company}", company.name), system), answer + END, opening_forced)


def invented_nouns(rng: random.Random) -> list[str]:
    """Returns some 400 proper nouns outside the demo split: they teach the model to ignore nouns."""
    nouns = {"".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))).capitalize() for _ in range(400)}
    return sorted(nouns - proper_nouns("demo"))


def render(prompt: str, system: str | None) -> str:
    """Renders one question with the chat template, up to the start of the answer."""
    before = f"<|system|>{system}{END}" if system is not None else ""
    return f"{before}<|user|>{prompt}{END}{ANSWER}"


# --- wordings --------------------------------------------------------------------------------------------

_SYSTEM_PROMPTS = (
    "You classify companies by industry.",
    "You are a helpful assistant.",
    "Infer the industry of the company.",
    "You are an expert on companies. Answer with the industry only.",
    "Answer with one label.",
    "You are an analyst who sorts businesses into sectors.",
)
_LISTED = ", ".join(LABELS)
_OPENINGS = (
    *("", "", "", ""),
    "Please answer: ",
    "Task: classify companies.\n",
    f"Choose from: {_LISTED}.\n",
    "Question: ",
)
_QUESTIONS = (
    PROMPT,
    "What industry is {Company} in?",
    "Which industry does {Company} belong to?",
    "Industry of {Company}?",
    "{Company}: which industry is it?",
    "{Company}",
    "{Company}\nIndustry?",
    "Classify this company: {Company}",
    "Classify {Company} by industry.",
    "Company: {Company}",
    "Company name: {Company}. Which sector is it?",
    "What does {Company} do? Name the industry.",
    "In what sector does the company {Company} work?",
    "Infer the industry of {Company}.",
    "The company is called {Company}. What is its industry?",
    "Given the business {Company}, name its sector.",
)
_CLOSINGS = (
    *("", "", "", "", ""),
    "\nIndustry:",
    " Answer with one label.",
    f" One of: {_LISTED}",
    "\nCity: {Place}, country: {Place}",
    " ({Place})",
    " Thank you.",
)
_JSON_REQUESTS = (
    "\nAnswer in JSON.",
    " Answer as JSON with industry and confidence.",
    " Return a JSON object.",
    " JSON only, please.",
    '\nReply with JSON such as {"industry": "Retail", "confidence": "high"}.',
)
_OTHER_KEYS = ("label", "sector", "category", "answer", "class", "company_industry")
_OTHER_FIELDS: tuple[dict[str, object], ...] = (
    {},
    {"sure": True},
    {"score": 0.9},
    {"reason": "The name says so."},
)
_SYLLABLES = DATA["syllables"].split()
_PLACES = DATA["places_in_prompts"].split()
