"""The values in the databases: realistic pools, split into training and held-out values.

A hash of a value's text decides if it is held out, so the split is always the same. Invented words
(``invent``) give training endless unseen names to copy.
"""

from __future__ import annotations

import zlib
from random import Random

_FIRST = (
    "Ada Alan Alice Amir Ana Anton Ayumi Boris Carla Carlos Chloe Dana Daniel Diego Elena Emil Emma Erik "
    "Fatima Felix Femi Grace Hana Hassan Hugo Ines Irene Ivan Jana Jonas Julia Kenji Lara Leo Lina Luca "
    "Maria Marta Mateo Mia Nadia Nora Olga Omar Oscar Paula Pedro Priya Rosa Sara Sofia Tariq Tomas Vera "
    "Victor Wei Yara Yusuf Zara Zoe"
).split()
_LAST = (
    "Adams Alvarez Bauer Becker Bianchi Brown Castro Chen Costa Dubois Ferrari Fischer Garcia Gomez Haddad "
    "Hansen Ito Ivanov Jensen Kaya Keller Khan Kim Kowalski Kumar Larsen Lopez Martin Meyer Moreau Nakamura "
    "Novak Okafor Olsen Park Patel Petrov Ramos Rossi Roux Sato Schmidt Silva Singh Smith Suzuki Tanaka "
    "Torres Vargas Weber Wolf Yilmaz"
).split()
_ADJECTIVES = (
    "Amber Arctic Bold Bright Classic Cosmic Crystal Falcon Golden Lunar Nordic Royal Silent Solar Swift"
).split()
_OBJECTS = (
    "Bridge Chair Clock Comet Desk Drone Engine Garden Harbor Kettle Lamp Mirror Orbit River Tower Voyager"
).split()
_SUBJECTS = (
    "Astronomy Biology Botany Chemistry Economics Geology Geography History Linguistics Mathematics Medicine "
    "Music Philosophy Physics Psychology Robotics Sociology Statistics Theology Zoology"
).split()

POOLS: dict[str, tuple[str, ...]] = {
    "city": tuple(
        "Amsterdam Athens Barcelona Berlin Bogota Boston Brussels Budapest Cairo Chicago "
        "Copenhagen Dakar Delhi "
        "Denver Dublin Florence Geneva Hamburg Helsinki Istanbul Jakarta Kyoto Lagos Lima Lisbon London Lyon "
        "Madrid Manila Milan Montreal Munich Nairobi Naples Osaka Oslo Paris Porto Prague Quito "
        "Rome Santiago "
        "Seattle Seoul Sydney Tallinn Tokyo Toronto Valencia Vienna Warsaw Zurich".split()
    ),
    "country": tuple(
        "Argentina Austria Belgium Brazil Canada Chile Croatia Denmark Egypt Estonia Finland "
        "France Germany Ghana "
        "Greece Hungary India Ireland Italy Japan Kenya Mexico Morocco Norway Peru Poland "
        "Portugal Spain Sweden "
        "Turkey Vietnam".split()
    ),
    "brand": tuple(
        "Acme Altair Boreal Calypso Cobalt Corvus Delphi Emberline Fenwick Gravita Halcyon "
        "Helios Ironwood Juniper "
        "Kestrel Lumina Meridian Northwind Octavia Pinnacle Quantix Ravenna Solstice Tundra "
        "Umbra Vertex Westmark "
        "Zenith".split()
    ),
    "category": tuple(
        "Audio Bakery Books Cameras Clothing Cosmetics Electronics Fitness Footwear Furniture "
        "Gaming Gardening "
        "Grocery Jewelry Kitchen Lighting Luggage Outdoor Stationery Toys".split()
    ),
    "segment": tuple(
        "Business Corporate Education Family Government Premium Private Startup Student Wholesale".split()
    ),
    "status": tuple("Cancelled Delivered Draft Paid Pending Refunded Returned Shipped".split()),
    "specialty": tuple(
        "Allergology Cardiology Dermatology Endocrinology Geriatrics Hematology Immunology "
        "Nephrology Neurology "
        "Oncology Ophthalmology Orthopedics Pediatrics Psychiatry Radiology Rheumatology "
        "Surgery Urology".split()
    ),
    "reason": tuple(
        "Allergy Asthma Checkup Cough Dizziness Fatigue Fever Fracture Headache Insomnia "
        "Migraine Nausea Rash "
        "Sprain Vaccination Vertigo".split()
    ),
    "subject": tuple(_SUBJECTS),
    "level": tuple("Advanced Beginner Doctoral Elementary Expert Graduate Honors Intermediate".split()),
    "term": tuple("Autumn Spring Summer Winter Easter Michaelmas".split()),
    "person": tuple(f"{a} {b}" for a in _FIRST for b in _LAST),
    "thing": tuple(f"{a} {b}" for a in _ADJECTIVES for b in _OBJECTS),
    "title": tuple(
        f"{a} of {b}"
        for a in ("Foundations", "History", "Methods", "Principles", "Theory")
        for b in _SUBJECTS
    ),
}

_ONSETS = "b br c ch cl d dr f fl g gr h j k kl l m n p pr qu r s sh sk sl st t th tr v w y z".split()
_VOWELS = "a e i o u ai ea ia io ou".split()
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "x", "nd", "rk", "st", "ck"]


def is_held_out(value: object) -> bool:
    """Return True if training questions exclude this value (about a third of all)."""
    return zlib.crc32(f"held-out {value}".encode()) % 3 == 0


def pool_values(pool: str, *, held_out: bool) -> list[str]:
    """Return the part of a pool that is (not) held out; never empty."""
    values = [v for v in POOLS[pool] if is_held_out(v) == held_out]
    return values or list(POOLS[pool])


def invent(rng: Random) -> str:
    """Return a pronounceable capitalized word of one to four syllables, meant to be in no pool."""
    num_syllables = rng.choice((1, 2, 2, 2, 3, 3, 4))
    word = "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(num_syllables)
    )
    return word.capitalize()
