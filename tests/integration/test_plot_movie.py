"""The GIF of ``seqdiff plot trace``: its frames and their content."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from seqdiff.plots import trace as pictures
from seqdiff.plots.trace import Screen, film_trace, wrap
from seqdiff.trace import Trace
from tests.integration.traces import AGAIN, MASK, A, C, G, T, record, small_trace


@pytest.fixture
def small() -> Trace:
    return small_trace()


class TestMovie:
    def test_a_screen_shows_the_states_wrapped_into_lines(self) -> None:
        picture = np.arange(2 * 25 * 4, dtype=np.uint8).reshape(2, 25, 4)
        lines = wrap(picture)
        assert lines.shape == (2, 3, 10, 4)
        assert (lines.reshape(2, 30, 4)[:, :25] == picture).all()
        assert not lines.reshape(2, 30, 4)[:, 25:].any(), "transparent"
        assert wrap(picture[:, :3]).shape == (2, 1, 3, 4)

    def test_a_screen_changes_with_the_state(self, small: Trace) -> None:
        screen = Screen(pictures.develop(small, 1, max_steps=9, max_positions=9), small)
        cells, curve = screen.figure.axes
        (drawn,) = cells.get_images()
        for frame, (state, letters, masked) in enumerate(
            [
                ([A, MASK, MASK, MASK], "A", 3),
                ([A, MASK, G, T], "AGT", 1),
                ([A, C, AGAIN, T], "ACT", 1),
            ]
        ):
            screen.show(frame)
            assert np.asarray(drawn.get_array())[0, :, :3].tolist() == np.array(state).tolist()
            assert "".join(text.get_text() for text in cells.texts) == letters
            assert curve.collections[-1].get_offsets().tolist() == [[frame, masked]]
            assert screen.figure.get_suptitle().endswith(f"\nstep {frame}: {masked} masked")

    def test_a_frame_for_every_state(self, small: Trace, tmp_path: Path) -> None:
        path = tmp_path / "a.gif"
        assert list(film_trace(path, small, 1)) == [(1, 3), (2, 3), (3, 3)]
        with Image.open(path) as gif:
            frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(gif)]
            last = gif.info["duration"]
        assert len(frames) == 3 and last == 500 + 2000, "the last one stays"
        assert {T, G} <= _colors(frames[1]) and AGAIN in _colors(frames[2])

    def test_of_a_long_trace_as_many_as_are_promised(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(pictures, "MAX_FRAMES", 4)
        path = tmp_path / "a.gif"
        states = [[4] * (9 - i) + [0] * i for i in range(10)]
        assert list(film_trace(path, record(states, "ACGTN"), 1))[-1] == (4, 4)
        with Image.open(path) as gif:
            assert gif.n_frames == 4


def _colors(image: Image.Image) -> set[tuple[int, ...]]:
    found = image.getcolors(2**24)
    assert found is not None
    return {color for _, color in found}
