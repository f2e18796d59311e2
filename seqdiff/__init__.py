"""Discrete diffusion over sequences of any tokens.

>>> import seqdiff
>>> run = seqdiff.load("runs/demo")
>>> run.sample(2, length=60, seed=0)
"""

import lazy_loader

from seqdiff.siblings import install_finder

install_finder()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
