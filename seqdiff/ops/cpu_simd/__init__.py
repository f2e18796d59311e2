"""SIMD vectors, tiles and threads that the CPU kernels share.

The CPU kernels use these words:

* A *row* is one sequence of the batch, with all its channels.
* A *lane* is one element of a SIMD vector. A vector has `LANES` lanes, which hold adjacent channels
  at one position.
* A *tile* is `LANES` adjacent channels by some consecutive positions, in a contiguous buffer.
* A *chunk* is the stretch of consecutive positions that a kernel processes at a time.
* A *task* is the unit of work that a thread takes: one row and some of its channels.
* A *token block* is one of the stretches of equal length that a row may be divided into, for block
  diffusion. Names in the code call it a *cut*, because `Block` is a block of channels there.
* A *border* is the boundary before a token block, or after the last one. A scan or a convolution
  can start from what was computed up to a border.
* A *tail* is the ``W - 1`` inputs before a border, which a convolution of width ``W`` reads.
* *Through* means that the scan continues from each token block into the next one, instead of
  starting anew at every border.

Positions are counted in the order in which they are read. To read from right to left, a kernel gets
a view with negative strides.
"""
