import re
from xml.etree import ElementTree

import pytest

from asterism.report.chart import HEIGHT, WIDTH, Chart, Line, bar, json_for_script, picture, short, ticks


def wrapped(markup):
    return ElementTree.fromstring(f"<svg>{markup}</svg>")


def test_points_lie_where_their_values_say():
    chart = Chart("t", "step", "loss", [Line("a", 0, [(0, 0.0), (10, 1.0)])])
    assert chart.box == (0, 10, -0.05, 1.05)
    drawn = next(one for one in wrapped(chart.svg) if one.get("class") == "line s0")
    (x0, y0), (x1, y1) = (map(float, place.split()) for place in drawn.get("d")[1:].split("L"))
    assert (x0, x1) == (54, WIDTH - 10) and HEIGHT - 40 > y0 > y1 > 10


def test_names_are_escaped():
    chart = Chart("<b>", "<i>", "y", [Line("<script>", 1, [(0, 1.0)])])
    assert "<i>" not in str(chart.svg) and "&lt;i&gt;" in str(chart.svg)
    assert "<script>" in chart.values["lines"][0]["name"]
    assert "<" not in json_for_script('{"a": "</script>"}')


def test_a_curve_of_one_value_and_one_point_is_drawn():
    for points in ([(5, 1.0)], [(0, 2.0), (9, 2.0)], [(0, 0.0), (9, 0.0)]):
        low, high = Chart("t", "x", "y", [Line("a", 0, points)]).box[2:]
        assert low < points[0][1] < high
    assert not Chart("t", "x", "y", [Line("a", 0, [])])


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3.7, 3.9), (-5, 12345), (0, 1e-7), (1e15, 3e15)])
def test_ticks_are_round_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 * high <= one <= high * (1 + 1e-9) for one in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234567, "0.01235"), (1234, "1,234"), (56700, "56.7k"), (8.9e12, "8.9T"), (1.2e-5, "1.2e-05")],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


def test_the_table_of_a_chart_is_bounded():
    rows = Chart("t", "x", "y", [Line("a", 0, [(x, float(x)) for x in range(1000)])]).rows
    assert len(rows) == 25 and rows[0] == ("0", ["0"]) and rows[-1] == ("999", ["999"])


def test_cells_of_a_pattern():
    drawn = ElementTree.fromstring(picture(["210", "002"], "a & b"))
    paths = {one.get("class"): one.get("d") for one in drawn if one.tag == "path"}
    assert paths == {"some": "M1 0h1v1h-1z", "all": "M0 0h1v1h-1zM2 1h1v1h-1z"}
    assert drawn[0].text == "a & b"


def test_bars_stay_inside():
    assert re.findall(r'width="([\d.]+)"', bar(7.0, 0)) == ["100", "100.0"]
    assert re.findall(r'width="([\d.]+)"', bar(0.5, 0)) == ["100", "50.0"]
