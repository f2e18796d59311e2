"""The selective scan of Mamba: reference, CPU, Triton and CUDA kernels behind one call."""

from seqdiff.ops.selective_scan.cpu import run_scan, run_scan_backward, scan_arguments
from seqdiff.ops.selective_scan.cpu_backward import (
    add_all_products,
    close_tile_back,
    open_tile_back,
    replay,
    reverse,
    scan_backward,
)
from seqdiff.ops.selective_scan.cpu_blocks import (
    CHUNK,
    TILES,
    Scan,
    count_groups,
    count_together,
    make_maps,
    place,
    read_chunk,
    read_maps,
)
from seqdiff.ops.selective_scan.cpu_buffers import (
    Gradients,
    add_up,
    gradient_room,
    make_sums,
    make_tile,
    saved_shape,
    write_maps,
    write_sums,
)
from seqdiff.ops.selective_scan.cpu_forward import (
    advance,
    close_tile,
    copy_vectors,
    make_room,
    open_tile,
    scan_forward,
)
from seqdiff.ops.selective_scan.cuda import has_triton, require_triton
from seqdiff.ops.selective_scan.dispatch import BACKENDS, selective_scan

__all__ = [
    "BACKENDS",
    "CHUNK",
    "TILES",
    "Gradients",
    "Scan",
    "add_all_products",
    "add_up",
    "advance",
    "close_tile",
    "close_tile_back",
    "copy_vectors",
    "count_groups",
    "count_together",
    "gradient_room",
    "has_triton",
    "make_maps",
    "make_room",
    "make_sums",
    "make_tile",
    "open_tile",
    "open_tile_back",
    "place",
    "read_chunk",
    "read_maps",
    "replay",
    "require_triton",
    "reverse",
    "run_scan",
    "run_scan_backward",
    "saved_shape",
    "scan_arguments",
    "scan_backward",
    "scan_forward",
    "selective_scan",
    "write_maps",
    "write_sums",
]
