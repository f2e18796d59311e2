"""File formats of genomics: FASTA, BED, VCF, tables, tracks, downloads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
