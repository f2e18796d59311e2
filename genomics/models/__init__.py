"""Trained models that come with the package, and the scripts that train them."""

from pathlib import Path

from seqdiff.run import PackagedModel

ECOLI_PROMOTERS = PackagedModel(
    Path(__file__).parent / "ecoli-promoters", "promoters of E. coli, 165 bases"
)
