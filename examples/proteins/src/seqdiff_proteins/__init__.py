"""Proteins as a token domain of seqdiff: an example of a domain that is a distribution of its own.

Configurations name the classes of this module.
"""

from seqdiff_proteins.alphabet import ProteinTokenizer
from seqdiff_proteins.data import AlignedProteins, Proteins
from seqdiff_proteins.network import SiteNetwork

__all__ = ["AlignedProteins", "ProteinTokenizer", "Proteins", "SiteNetwork"]
