"""``seqdiff plot trace``, checked by the numbers that matplotlib receives."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from seqdiff.cli.app import main
from seqdiff.plots import colors
from seqdiff.plots.colors import Colors, ink, spell
from seqdiff.plots.trace import MAX_POSITIONS, MAX_STEPS, draw_trace, spread
from seqdiff.samplers import Recorder
from seqdiff.trace import Trace, write_trace
from tests.integration.traces import AGAIN, MASK, A, C, G, T, record, small_trace

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small() -> Trace:
    return small_trace()


def _legend(figure: Figure) -> dict[str, tuple[int, ...]]:
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    faces = [patch.get_facecolor() for patch in legend.get_patches()]
    return {
        text: tuple(round(255 * part) for part in face[:3])
        for text, face in zip(texts, faces, strict=True)
    }


def test_a_small_trace_is_drawn_as_it_is(small: Trace) -> None:
    figure = draw_trace(small, 1)
    image, curve = figure.axes
    (drawn,) = image.get_images()
    expected = [[A, MASK, MASK, MASK], [A, MASK, G, T], [A, C, AGAIN, T]]
    assert np.asarray(drawn.get_array())[..., :3].tolist() == np.array(expected).tolist()
    assert (np.asarray(drawn.get_array())[..., 3] == 255).all()
    assert drawn.get_extent() == [-0.5, 3.5, 2.5, -0.5], "step 0 is at the top"
    (line,) = curve.get_lines()
    assert np.array(line.get_data()).tolist() == [[3, 1, 1], [0, 1, 2]]
    letters = {t.get_position(): (t.get_text(), t.get_color()) for t in image.texts}
    assert letters == {
        (0, 0): ("A", "white"),
        (2, 1): ("G", "black"),
        (3, 1): ("T", "white"),
        (0, 2): ("A", "white"),
        (1, 2): ("C", "white"),
        (3, 2): ("T", "white"),
    }
    assert _legend(figure) == {"A": A, "C": C, "G": G, "T": T, "mask": MASK, "remasked": AGAIN}
    assert figure.get_suptitle() == "one, drawn by mine in 2 steps"
    assert (image.get_xlabel(), image.get_ylabel()) == ("position", "step")
    assert curve.get_xlabel() == "masked positions of 4"


def test_the_legend_names_only_what_is_there() -> None:
    figure = draw_trace(record([[2, 2], [0, 2]], ["$x_1$", "\n", "?"], name="a $b$"), 1)
    assert list(_legend(figure)) == [r"\$x_1\$", r"'\n'", "mask"]
    assert figure.get_suptitle() == r"a \$b\$, drawn by mine in 1 step"


@pytest.mark.parametrize(
    ("symbol", "spelled"),
    [
        ("A", "A"),
        ("", "''"),
        (" ", "' '"),
        ("é", r"'\xe9'"),
        ("$", r"\$"),
        ("a" * 13, "a" * 11 + "~"),
    ],
)
def test_symbols_are_spelled_so_that_any_font_shows_them(symbol: str, spelled: str) -> None:
    assert spell(symbol) == spelled


def _long() -> Trace:
    """Each of 3,000 positions is revealed in its own step, from left to right."""
    found, length = Recorder(), 3000
    x_t = torch.full((1, length), 4)
    found.start(x_t, [0])
    for position in range(length):
        x_t[0, position] = position % 4
        found(position + 1, x_t)
    return found.trace(sampler="mine", names=["long"], symbols=list("ACGTN"))


def test_of_a_long_trace_some_states_and_positions_are_drawn_and_the_labels_say_so() -> None:
    figure = draw_trace(_long(), 0)
    image, curve = figure.axes
    assert image.get_xlabel() == "position (1,024 of 3,000 positions drawn)"
    assert image.get_ylabel() == "step (1,024 of 3,001 states drawn)"
    steps, positions = spread(3001, MAX_STEPS), spread(3000, MAX_POSITIONS)
    letters = np.array([A, C, G, T])[positions % 4]
    visible = positions[None] < steps[:, None]
    expected = np.where(visible[..., None], letters[None], MASK)
    (drawn,) = image.get_images()
    assert (np.asarray(drawn.get_array())[..., :3] == expected).all()
    assert drawn.get_extent() == [-0.5, 2999.5, 3000.5, -0.5]
    (line,) = curve.get_lines()
    assert line.get_xdata().tolist() == list(range(3000, -1, -1)), "every step is counted"
    assert not image.texts


@pytest.mark.parametrize(("count", "limit"), [(1, 1), (3, 5), (5, 5), (3001, 1024), (7, 2)])
def test_what_is_drawn_is_spread_evenly_and_holds_both_ends(count: int, limit: int) -> None:
    chosen = spread(count, limit)
    assert len(chosen) == min(count, limit)
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    gaps = np.diff(chosen)
    assert not len(gaps) or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)


def test_a_large_alphabet_lies_on_a_scale_with_a_bar() -> None:
    symbols = [f"t{i}" for i in range(1000)] + ["?"]
    figure = draw_trace(record([[1000, 1000, 0], [999, 500, 0]], symbols), 1)
    image, _, bar = figure.axes
    (drawn,) = image.get_images()
    scale = (255 * np.array(colormaps["viridis"]([1.0, 500 / 999, 0.0]))).round()
    assert np.asarray(drawn.get_array())[1].tolist() == scale.tolist()
    assert list(_legend(figure)) == ["mask"]
    ticks = [label.get_text() for label in bar.get_yticklabels()]
    assert ticks[0] == "0 t0" and ticks[-1] == "999 t999" and len(ticks) == 9
    assert bar.get_ylabel() == "token id"


def test_seven_letters_have_colors_of_their_own_and_eight_a_scale() -> None:
    assert Colors(tuple("abcdefg?")).few and not Colors(tuple("abcdefgh?")).few


def _apart(palette: tuple[str, ...]) -> float:
    """Smallest CIELAB distance of two colours, for normal and for dichromatic vision.

    Simulation: Machado, Oliveira and Fernandes 2009, https://doi.org/10.1109/TVCG.2009.113.
    """
    eyes = np.array(
        [
            [1, 0, 0, 0, 1, 0, 0, 0, 1],
            [0.1523, 1.0526, -0.2049, 0.1145, 0.7863, 0.0992, -0.0039, -0.0481, 1.0520],
            [0.3673, 0.8606, -0.2280, 0.2801, 0.6725, 0.0474, -0.0118, 0.0429, 0.9689],
            [1.2555, -0.0767, -0.1788, -0.0784, 0.9308, 0.1476, 0.0047, 0.6914, 0.3039],
        ]
    ).reshape(-1, 3, 3)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    rgb = np.array([to_rgb(color) for color in palette])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    smallest = np.inf
    for eye in eyes:
        seen = np.clip(linear @ eye.T, 0, 1) @ xyz.T / [0.95047, 1, 1.08883]
        f = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
        lab = np.stack(
            [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1
        )
        pairs = itertools.combinations(lab, 2)
        smallest = min(smallest, *(float(np.linalg.norm(a - b)) for a, b in pairs))
    return smallest


def test_colors_stay_apart_for_colour_blind_eyes() -> None:
    """A distance of 10 is obvious at a glance; 2.3 is just noticeable."""
    assert _apart((*colors.PALETTE, colors.MASK, colors.REMASKED)) > 15
    # common colours for DNA
    assert _apart(("#00AA00", "#0000FF", "#FFAA00", "#DD0000", "#808080")) < 15
    assert _apart((*colors.PALETTE, colors.MASK, "#808080")) < 10


def test_letters_are_written_in_what_contrasts() -> None:
    assert ink(np.array([230, 230, 230, 255], np.uint8)) == "black"
    assert ink(np.array([0, 114, 178, 255], np.uint8)) == "white"


@pytest.fixture
def file(small: Trace, tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write_trace(folder / "t.npz", small)
    return folder / "t.npz"


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".gif", b"GIF89a")],
)
def test_the_suffix_chooses_the_format(
    file: Path, tmp_path: Path, capsys, suffix: str, start: bytes
) -> None:
    outs = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for out, row in zip(outs, ("1", "one"), strict=True):
        assert main(["plot", "trace", str(file), "--out", str(out), "--row", row]) == 0
        assert capsys.readouterr().out == f"{out}: one, 3 states\n"
        assert out.read_bytes().startswith(start)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert main(["plot", "trace", str(file), "--out", str(outs[1])]) == 0
    assert outs[0].read_bytes() != outs[1].read_bytes(), "another row"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{t} --out {d}/a.jpg", "plot.out must end in one of .gif, .pdf, .png, .svg, got {d}/a.jp"),
        ("{t} --out {d}/a", "plot.out must end in one of .gif, .pdf, .png, .svg, got {d}/a; rena"),
        ("{t} --out {d}/no/a.png", "plot.out must lie in an existing folder, got {d}/no/a.png; ru"),
        ("{d}/none.npz --out {d}/a.png", "{d}/none.npz: No such file or directory"),
        ("{d} --out {d}/a.png", "{d}: Is a directory"),
        ("{readme} --out {d}/a.png", "{readme} must be a trace that seqdiff sample --trace wrote"),
        (
            "{t} --out {d}/a.png --row 2",
            "plot.row must be the name of a sequence or a number in 0..1, got '2'; the names are "
            "zero ... one",
        ),
        ("{t} --out {d}/a.gif --row=-1", "plot.row must be the name of a sequence or a number in"),
        ("{t} --out {d}/a.png --row two", "plot.row must be the name of a sequence or a number i"),
        ("{t} --out {d}/a.png --fly", "Unknown option: --fly; see: seqdiff plot --help"),
    ],
)
def test_wrong_input_is_refused_in_one_line(
    file: Path, tmp_path: Path, fails: Callable, arguments: str, message: str
) -> None:
    names = {"t": file, "d": tmp_path, "readme": ROOT / "README.md"}
    said = fails(["plot", "trace", *(word.format(**names) for word in arguments.split())])
    assert said.startswith(f"seqdiff: error: {message.format(**names)}")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_picture_must_be_named(fails: Callable) -> None:
    assert "PICTURE requires an argument; see: seqdiff plot --help" in fails(["plot"])
    assert 'Invalid value "cat" for PICTURE' in fails(["plot", "cat", "x.npz"])


def test_names_come_before_numbers(tmp_path: Path, capsys) -> None:
    write_trace(tmp_path / "t.npz", record([[1], [0]], "A?", name="0"))
    command = ["plot", "trace", str(tmp_path / "t.npz"), "--out", str(tmp_path / "a.png")]
    assert main(command) == 0
    assert "a.png: 0, 2 states" in capsys.readouterr().out


def test_what_is_not_needed_is_not_imported(file: Path, tmp_path: Path) -> None:
    """Help imports nothing slow and a still picture does not import torch; pyplot is unchanged."""
    for words, heavy in (
        ("plot trace --help", "torch numpy matplotlib"),
        (f"plot trace {file} --out {tmp_path}/a.png", "torch matplotlib.pyplot"),
    ):
        code = "import sys; from seqdiff.cli.app import main\n"
        code += f"try: main({words.split()!r})\nexcept SystemExit: pass\n"
        code += f"sys.exit(', '.join(set({heavy.split()!r}) & set(sys.modules)) or 0)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
