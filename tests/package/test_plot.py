"""`cupy-losses plot`: the curves are those of the losses, and the file is the same every time."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_losses.__main__ import main
from cupy_losses._commands import bandwidth, curves, losses, picture


def drawn(name: str, *parameters: tuple[str, str]) -> curves.Curves:
    function = losses.find(name)
    return curves.curves_of(function, function.arguments(parameters, "none"))


@pytest.mark.parametrize("name", losses.names())
def test_derivatives_are_slopes(name: str) -> None:
    """Of each curve, but at kinks and beside poles."""
    found = drawn(name)
    assert found.curves
    for curve in found.curves:
        slopes = np.gradient(curve.values, found.points)
        near = np.isclose(curve.derivatives, slopes, rtol=0.02, atol=0.02)
        assert near[1:-1].mean() > 0.9
        assert np.ptp(curve.values) > 0 or not curve.derivatives.any()


def test_a_failure_leaves_the_picture_that_was_there(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "full.svg"
    file.write_text("as before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))  # as a disk that is full
    try:
        code = main(["plot", "log_cosh_loss", "--output", str(file)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, capsys.readouterr().err) == (1, f"Error: {file}: File too large\n")
    assert file.read_text() == "as before"
    assert [*tmp_path.iterdir()] == [file]


def test_values_are_those_of_the_loss() -> None:
    found = drawn("smooth_l1_loss", ("beta", "0.5"))
    x, (curve,) = found.points, found.curves
    expected = np.where(abs(x) < 0.5, x * x, abs(x) - 0.25)
    np.testing.assert_allclose(curve.values, expected, rtol=1e-12)
    assert (found.axis, curve.label) == ("input", "target = 0")


def test_a_curve_for_each_class() -> None:
    found = drawn("cross_entropy")
    of_class = {curve.label: curve.values for curve in found.curves}
    assert list(of_class) == ["target = 0", "target = 1"]
    np.testing.assert_allclose(of_class["target = 1"], np.log1p(np.exp(-found.points)), rtol=1e-12)
    np.testing.assert_allclose(of_class["target = 0"], of_class["target = 1"][::-1], rtol=1e-12)


def test_rows_of_vectors() -> None:
    """The angle between two, the distance between the first two of three."""
    found = drawn("cosine_embedding_loss")
    alike = next(curve for curve in found.curves if curve.label == "target = 1")
    np.testing.assert_allclose(alike.values, 1 - np.cos(found.points), atol=1e-11)
    found = drawn("triplet_margin_loss", ("margin", "0.5"), ("eps", "0"))
    np.testing.assert_allclose(found.curves[0].values, np.maximum(found.points - 1.5, 0))


def test_the_variant_of_the_parameters_is_drawn() -> None:
    """Its operands may have another range: a target is a probability, or the logarithm of one."""
    for flag, label in (("false", "target = 1"), ("true", "target = 0")):
        (curve,) = drawn("kl_div", ("log_target", flag)).curves
        assert curve.label == label
        np.testing.assert_allclose(curve.values, np.linspace(4, -4, 401), atol=1e-12)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_files(ending: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes in every run; other parameters draw another picture."""
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "huber_loss", "--output", f"a.{ending}"]) == 0
    assert capsys.readouterr().out == f"wrote a.{ending}\n"
    assert main(["plot", "huber_loss", "--output", f"b.{ending}"]) == 0
    assert main(["plot", "huber_loss", "--delta", "2", "--output", f"c.{ending}"]) == 0
    first, second, other = (Path(f"{name}.{ending}").read_bytes() for name in "abc")
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert first == second
    assert first != other


def test_the_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "l1_loss"]) == 0
    assert (tmp_path / "l1_loss.png").exists()


@pytest.mark.parametrize("name", losses.names())
def test_an_option_for_each_parameter(
    name: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the loss of one element or row has; each takes the default of the loss."""
    monkeypatch.setattr(picture, "rendered", lambda size, kind, fill: b"")
    monkeypatch.chdir(tmp_path)
    function = losses.find(name)
    given = [
        f"--{key.replace('_', '-')}={function.parameters[key]}"
        for key in function.parameters
        if key not in ("axis", "scale")
    ]
    assert main(["plot", *given, name]) == 0
    assert capsys.readouterr().out == f"wrote {name}.png\n"


def luminance(colour: str) -> float:
    """The relative luminance of the contrast rules for the web."""
    levels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in levels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("background", ["#ffffff", "#1e2129"])
def test_colours_stand_out(background: str) -> None:
    """From a white page and from a dark one, by 3 to 1."""
    of_lines = [line[0] for line in bandwidth.LINES.values()]
    for colour in (picture.GREY, *(colour for colour, _ in picture.STYLES), *of_lines):
        light, dark = sorted([luminance(colour), luminance(background)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3


def test_poles_do_not_flatten_the_rest() -> None:
    """The derivative of a logarithm near 0 is cut off; a parabola is shown to its ends."""
    function = picture._limits
    pole = -1 / np.linspace(1e-9, 1, 401)
    assert -50 < function(pole)[0] < -10
    parabola = np.linspace(-4, 4, 401) ** 2
    assert function(parabola)[1] > 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_loss"], "'no_loss' is not one of"),
        (["l1_loss", "--output", "a.pdf"], "--output must be a .png or a .svg file, got a.pdf"),
        (["l1_loss", "--output", "nowhere/a.png"], "--output: there is no folder nowhere"),
        (["l1_loss", "--output", ""], "--output must be a .png or a .svg file"),
        (["huber_loss", "--delta", "-1"], "huber_loss: delta must be"),
        (["huber_loss", "--beta", "1"], "huber_loss has no parameter 'beta': it has delta"),
        (["huber_loss", "--delta", "1", "--delta", "2"], "the parameter delta is given twice"),
        (["huber_loss", "--scale", "2"], "No such option '--scale'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: Any) -> None:
    assert main(["plot", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_without_matplotlib(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "l1_loss"]) == 1
    assert 'pictures need matplotlib: pip install "cupy-losses[plot]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
