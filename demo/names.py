"""Company names whose industry is known: what the demo asks about and what its model learns from.

A name is a pattern filled with proper nouns: "{p} & {q} LLP" with "Hartmann" and "Pruitt". Each pattern
belongs to one industry, so `industry_of` reads the truth back from a name and no truth file can stray into a
dataset.

Held out by construction: every proper noun belongs, by its CRC-32, to either the `train` split or the `demo`
split, no noun is a word of a pattern, and all nouns of a name are of one split. So no name that
`demo.tiny_model` trains on can occur in a dataset of `demo.customers`, nor any part of it but shared words
such as "Orthopedic Clinic".

Imports the standard library only.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Literal, NamedTuple

LABELS = (
    "Law Firm",
    "Healthcare",
    "Technology",
    "Retail",
    "Consulting",
    "Manufacturing",
    "Finance",
    "Real Estate",
    "Other",
)
"""The nine answers of the reference workload, in its order."""

Split = Literal["train", "demo"]


class Company(NamedTuple):
    """A company's name and its true industry; that of a name without a hint is "Other"."""

    name: str
    industry: str


def industry_of(company: str) -> str | None:
    """The true industry of a company name made by this module; None for any other name."""
    known = _PATTERN_OF_SHAPE.get(_WORD.sub(_blank_if_noun, company))
    return known.industry if known is not None else None


def companies(
    rng: random.Random, count: int, *, split: Split, more_nouns: Sequence[str] = ()
) -> list[Company]:
    """`count` companies named with proper nouns of `split` and `more_nouns`, all industries as likely.

    Raises ValueError if one of `more_nouns` belongs to the other split or is a word of a pattern.
    """
    taken = (_ALL_NOUNS - _WORDS_OF_SPLIT[split] | _PATTERN_WORDS).intersection(more_nouns)
    if taken:
        raise ValueError(f"not free to be proper nouns of split {split!r}: {sorted(taken)}")
    patterns = rng.choices(_PATTERNS, cum_weights=_PATTERN_WEIGHTS, k=count)
    people = [*_PEOPLE[split], *more_nouns]
    fills = zip(
        rng.choices([*_NOUNS[split], *more_nouns], k=count),
        rng.choices(people, k=count),
        rng.choices(people, k=count),
        rng.choices(people, k=count),
        strict=True,
    )
    return [
        Company(pattern.text.format(n=n, p=p, q=q, r=r), pattern.industry)
        for pattern, (n, p, q, r) in zip(patterns, fills, strict=True)
    ]


def proper_nouns(split: Split) -> frozenset[str]:
    """Every proper noun of a split, one word each: of "Blue Ridge" only "Blue", as "Ridge" is shared."""
    return frozenset(_WORDS_OF_SPLIT[split])


def words(text: str) -> list[str]:
    """The words of a text: how this package writes long lists."""
    return text.split()


# --- proper nouns ----------------------------------------------------------------------------------------

SURNAMES = words("""
Abbott Acosta Adler Aguilar Alvarez Andersen Archer Arnold Ashworth Avery Ayala Barnett Barrera Bauer
Beasley Becker Benson Bernard Berger Blackwell Blevins Boone Bradford Brandt Briggs Brennan Buchanan Burke
Cabrera Calderon Callahan Cameron Camacho Cantrell Cardenas Carlson Castillo Chandra Chavez Christensen
Cisneros Clayton Cochran Conrad Contreras Conway Cordova Costa Crawford Cunningham Dalton Daugherty
Davenport Delgado Dickerson Dillon Dominguez Donovan Dorsey Doyle Dudley Duncan Durham Eaton Ellison Emerson
Espinoza Estrada Everett Farrell Ferguson Fernandez Figueroa Fischer Fitzgerald Fleming Fletcher Fuentes
Gallagher Galloway Garrison Gentry Gibbs Gilbert Goodwin Gould Graves Griffith Guerrero Gutierrez Haas Hagen
Hancock Hansen Hartmann Hatfield Hawkins Hebert Heller Hensley Herrera Higgins Hoffman Hobbs Hughes Huang
Ibarra Ingram Iverson Jacobson Jankowski Jarvis Jefferson Jimenez Joyce Kapoor Kaufman Keller Kemp Kerr
Kirby Klein Knox Kowalski Kramer Krause Lambert Langley Larsen Lawson Leblanc Leon Levine Lindgren Lloyd
Lozano Lucas Lynch Macdonald Madden Maldonado Malone Marquez Maxwell Mcbride Mcclain Mcconnell Mcdaniel
Mckenzie Mcmillan Melton Mendoza Mercado Meyers Molina Montoya Moreno Morrow Mueller Mullins Murillo
Nakamura Navarro Nguyen Nichols Nielsen Nolan Norris Novak Obrien Ochoa Olsen Orozco Ortega Osborne Pacheco
Padilla Patel Patrick Paulsen Pearce Pennington Petersen Pham Phelps Pittman Ponce Powell Prescott Preston
Proctor Pruitt Quinn Quintero Ramsey Randolph Rasmussen Reeves Reilly Reyes Rhodes Rivas Robbins Rojas
Rosario Roth Rowland Rubio Salazar Salinas Sandoval Santiago Sanders Schaefer Schmitt Schroeder Sellers
Serrano Shaffer Shepherd Sheppard Sinclair Skinner Slater Solis Sorensen Sosa Spencer Stafford Stanton Stein
Stephens Stokes Strickland Suarez Sutton Swanson Sweeney Tanaka Tapia Thornton Trevino Trujillo Underwood
Valdez Valenzuela Vance Vargas Vasquez Velez Villa Vincent Wagner Walther Warner Watkins Weber Webster Weiss
Whitaker Whitfield Wiggins Wilcox Wilkins Winters Woodard Wu Wyatt Xiong Yamada Yates Yoder Zamora Zhang
Zimmerman Muñoz Núñez Müller Lefèvre Björk Søndergaard
""")

PLACES = words("""
Amber Antelope Appalachia Arbor Arrow Aspen Atlantic Aurora Badger Bay Bayside Beacon Bear Birch Bison Black
Blue Bluff Boulder Brookside Buckeye Buffalo Canyon Cardinal Cascade Cedar Central Cherry Chesapeake Clear
Clearwater Coastal Copper Coral Cottonwood Cypress Dakota Deer Delta Desert Diamond Dogwood Eagle Eastgate
Elk Elm Emerald Evergreen Falcon Fern Forest Fox Frontier Gateway Glacier Gold Golden Granite Great Green
Gulf Harborview Hawthorn Hazel Heron Hickory Highland Hillcrest Hudson Indigo Iron Ironwood Juniper Keystone
Lakeside Lakeview Laurel Liberty Lincoln Lone Lotus Magnolia Maple Meridian Mesa Midtown Midwest Mill
Monarch Monterey Moss Northgate Northstar Oak Oakwood Ocean Olympic Onyx Orchard Oxford Pacific Palm
Palmetto Parkside Pearl Pebble Pelican Pine Pinnacle Pioneer Piedmont Plymouth Poplar Prairie Quail Raven
Red Redwood Riverside Riverbend Robin Rocky Rose Rosewood Sage Salt Sandstone Sapphire Savannah Sequoia
Shady Sierra Silver Southgate Sparrow Spring Spruce Stone Stonegate Summit Sunrise Sunset Sycamore Tahoe
Tamarack Teton Thunder Timber Trillium Tulip Twin Valleyview Westfield Westgate White Wild Willow Windsor
Wolf Woodland Yellow Yosemite Zenith
""")

_FEATURES = words("Ridge Creek Valley Harbor Hollow Point Grove Hills Lake River Peak Meadow")

_COINED = [
    start + end
    for start, end in product(
        words("Ver Nex Lum Qu Zel Alt Syn Tri Cor Om Vel Axi Pra Sol Kry Mar"),
        words("ora ance ient ynd avo enta ixa ulon essa idia ovex arin"),
    )
]


def _split_of(noun: str) -> Split:
    """Which split owns a proper noun: about two in five go to the demo."""
    return "demo" if zlib.crc32(noun.encode()) % 5 < 2 else "train"


_SPLITS: tuple[Split, ...] = ("train", "demo")
_PEOPLE = {split: [noun for noun in SURNAMES if _split_of(noun) == split] for split in _SPLITS}
_PLACES_OF = {split: [noun for noun in PLACES if _split_of(noun) == split] for split in _SPLITS}
_COINED_OF = {split: [noun for noun in _COINED if _split_of(noun) == split] for split in _SPLITS}
_WORDS_OF_SPLIT = {split: {*_PEOPLE[split], *_PLACES_OF[split], *_COINED_OF[split]} for split in _SPLITS}
_NOUNS = {
    split: [
        *_PEOPLE[split] * 4,
        *_PLACES_OF[split] * 3,
        *(f"{place} {feature}" for place, feature in product(_PLACES_OF[split], _FEATURES)),
        *_COINED_OF[split] * 4,
    ]
    for split in _SPLITS
}
"""What `{n}` in a pattern may become; `{p}`, `{q}` and `{r}` are surnames."""


# --- patterns -----------------------------------------------------------------------------------------------


class _Pattern(NamedTuple):
    text: str
    industry: str


_COMPANY_ENDINGS = ("", "", "", "", "", ", Inc.", " Inc.", " LLC", ", LLC", " Ltd.", " Corp.", " Co.")
_PRACTICE_ENDINGS = ("", "", "", ", P.C.", " PLLC", ", P.A.")
_HEALTH_ENDINGS = ("", "", "", "", ", P.C.", " PLLC", ", P.A.", " LLC", ", Inc.")


def _listed(text: str) -> list[str]:
    return text.split(" / ")


def _cores(modifiers: str, heads: str, more: str, *, times: int = 4) -> list[str]:
    """Patterns: a noun, a modifier and a head in every combination, and `times` each of `more`."""
    pairs = product(_listed(modifiers), _listed(heads))
    return [*(f"{{n}} {modifier} {head}" for modifier, head in pairs), *_listed(more) * times]


_LAW = _cores(
    "Injury / Family / Immigration / Patent / Trial / Criminal Defense / Employment / Bankruptcy / Estate / "
    "Maritime",
    "Law / Lawyers / Attorneys / Law Group / Legal",
    "{n} Law / {n} Law Group / {n} Law Firm / {n} Legal / {n} Legal Partners / {n} Attorneys / Law Offices "
    "of {p} / Law Office of {p} & {q} / {p} & {q}, Attorneys at Law / {p} & {q} Solicitors / {p} & {q} Law / "
    "{p} {q} Barristers",
)
_LAW_PARTNERSHIPS = ["{p} & {q} LLP", "{p}, {q} & {r} LLP", "{p} {q} LLP", "{p} & Partners LLP"]
_HEALTHCARE = _cores(
    "Orthopedic / Pediatric / Dental / Cardiology / Dermatology / Eye / Women's Health / Physical Therapy / "
    "Radiology / Oncology / Family Medicine / Allergy / Spine / Fertility",
    "Clinic / Center / Associates / Specialists / Care",
    "{n} Hospital / {n} Regional Medical Center / {n} Medical Group / {n} Health / {n} Health System / {n} "
    "Hospice / {n} Nursing Home / {n} Surgery Center / {n} Urgent Care / {n} Diagnostics / Children's "
    "Hospital of {n} / {p} & {q} Dentistry",
)
_TECHNOLOGY = _cores(
    "Cloud / Data / Cyber / Software / AI / Network / Mobile / Quantum / Web / Semiconductor / Digital / "
    "Analytics",
    "Systems / Technologies / Labs / Solutions / Platforms",
    "{n} Software / {n} Cybersecurity / {n} Apps / {n} Computing / {n} Robotics / {n} Networks / {n} "
    "Technologies / {n} Micro Devices / {p} & {q} Software / {n} Web Hosting / {n} Databases",
)
_TECHNOLOGY_DOMAINS = ["{p}.ai", "{p}.io"]
_RETAIL = _cores(
    "Shoe / Book / Toy / Furniture / Grocery / Garden / Pet / Jewelry / Clothing / Outdoor / Kitchen / Bike "
    "/ Music / Carpet",
    "Store / Stores / Shop / Outlet / Mart / Emporium",
    "{n} Supermarkets / {n} Department Stores / {n} Hardware Store / {n} Fashion Boutique / {n} Retail / {n} "
    "Stores / {p}'s Gift Shop / {p}'s Corner Store / {p} & {q} Jewelers / {n} Shopping Mall / {n} Discount "
    "Outlet",
)
_CONSULTING = _cores(
    "Management / Strategy / Business / Operations / HR / Supply Chain / Change / Risk / Leadership / "
    "Sustainability / Policy",
    "Consulting / Consultants / Advisory / Advisory Group / Consultancy",
    "{n} Consulting / {n} Consulting Group / {p} & {q} Consulting / {n} Strategy Partners / {p} {q} "
    "Consultants / {n} Strategic Advisory / {n} Management Advisors",
)
_MANUFACTURING = _cores(
    "Steel / Plastics / Machine / Tool / Valve / Pump / Glass / Paper / Textile / Packaging / Engine / Auto "
    "Parts / Bearing / Chemical",
    "Manufacturing / Works / Fabrication / Industries / Products",
    "{n} Foundry / {n} Tool & Die / {n} Machining / {n} Precision Manufacturing / {n} Mills / {n} Factory / "
    "{n} Industrial Equipment / {p} & {q} Manufacturing / {n} Metal Stamping",
)
_FINANCE = _cores(
    "Wealth / Capital / Credit / Mortgage / Investment / Asset / Pension / Equity / Insurance / Savings",
    "Management / Partners / Advisors / Bank / Fund / Finance",
    "Bank of {n} / First {n} Bank / {n} Credit Union / {n} Insurance / {n} Savings & Loan / {n} Capital / "
    "{n} Bank / {p} & {q} Accounting / {n} Trust Company / {n} Financial / {n} Brokerage",
)
_REAL_ESTATE = _cores(
    "Commercial / Residential / Luxury / Lakefront / Downtown / Urban / Vacation / Country / Waterfront / "
    "Suburban",
    "Realty / Properties / Real Estate / Homes / Property Management / Realtors",
    "{n} Realty / {n} Property Group / {n} Apartments / {n} Land Development / {n} Real Estate / {p} & {q} "
    "Realtors / {p} & {q} Realty / {n} Property Management / {n} Properties / {n} Homes",
)
_OTHER = _cores(
    "Baptist / Lutheran / Community",
    "Church / School / Choir / Museum",
    "{n} Dairy Farm / {n} Organic Farms / {n} Vineyards / {n} Trattoria / {n} Pizzeria / {p}'s Pizza / The "
    "{n} Café / {n} Diner / {n} Brewery / {n} Academy / University of {n} / {n} Theater / {n} Yoga Studio / "
    "{n} Airlines / {n} Trucking / {n} Hotel / {n} Construction / {n} Plumbing / {n} Roofing / {n} "
    "Landscaping / {n} Bakery / {n} Film Productions / {n} Symphony / {n} Soccer Club / {n} Animal Shelter / "
    "{n} Foundation / {n} Ranch / {n} Publishing / {n} Radio / {p}'s Bakery / {p}'s Barbecue / The \"{n}\" "
    "Grill / {n} Freight Lines",
    times=1,
)
_NO_HINT = _listed(
    "{n} Group / {n} Holdings / {n} Enterprises / {n} International / {n} Associates / {n} Worldwide / {n} / "
    "{p} & {q} / {p}, {q} and {r} / {p} and Sons / {p} & Sons / {p} Brothers / {p}-{q} / {p} PLC / {n} "
    "Ventures"
)


def _weighted_patterns() -> dict[_Pattern, float]:
    """Every pattern with its ending, and its weight: 1 for each industry; a third of "Other" has no hint."""
    groups = (
        ("Law Firm", 0.75, _LAW, _PRACTICE_ENDINGS),
        ("Law Firm", 0.25, _LAW_PARTNERSHIPS, ("",)),
        ("Healthcare", 1.0, _HEALTHCARE, _HEALTH_ENDINGS),
        ("Technology", 0.95, _TECHNOLOGY, _COMPANY_ENDINGS),
        ("Technology", 0.05, _TECHNOLOGY_DOMAINS, ("",)),
        ("Retail", 1.0, _RETAIL, _COMPANY_ENDINGS),
        ("Consulting", 1.0, _CONSULTING, _COMPANY_ENDINGS),
        ("Manufacturing", 1.0, _MANUFACTURING, _COMPANY_ENDINGS),
        ("Finance", 1.0, _FINANCE, _COMPANY_ENDINGS),
        ("Real Estate", 1.0, _REAL_ESTATE, _COMPANY_ENDINGS),
        ("Other", 0.67, _OTHER, _COMPANY_ENDINGS),
        ("Other", 0.33, _NO_HINT, _COMPANY_ENDINGS),
    )
    weights: dict[_Pattern, float] = {}
    for industry, share, cores, endings in groups:
        each = share / (len(cores) * len(endings))
        for core, ending in product(cores, endings):
            pattern = _Pattern(core + ending, industry)
            weights[pattern] = weights.get(pattern, 0.0) + each
    return weights


_WEIGHTS = _weighted_patterns()
_PATTERNS = list(_WEIGHTS)
_PATTERN_WEIGHTS = list(accumulate(_WEIGHTS.values()))

# A letter run, and the shared second word of a place if it follows: "Blue Ridge" is one blank, as "Hart" is.
_WORD = re.compile(rf"([^\W\d_]+)(?: (?:{'|'.join(_FEATURES)})\b)?")
_ALL_NOUNS = _WORDS_OF_SPLIT["train"] | _WORDS_OF_SPLIT["demo"]
_PATTERN_WORDS = {
    *_FEATURES,
    *(word for pattern in _PATTERNS for word in re.findall(r"[^\W\d_]+", pattern.text)),
}
_PATTERN_OF_SHAPE = {re.sub(r"\{[npqr]\}", "{}", pattern.text): pattern for pattern in _PATTERNS}


def _blank_if_noun(match: re.Match[str]) -> str:
    return "{}" if match[1] in _ALL_NOUNS else match[0]
