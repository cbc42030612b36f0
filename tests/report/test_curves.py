import math

from asterism.report.curves import RunCurve, label_of, read_curves, thinned


def test_training_validation_and_the_time_of_a_step():
    history = [
        {"step": 5, "seconds": 1.0, "loss": 2.0, "bytes_per_second": 100.0},
        {"step": 5, "seconds": 1.0, "validation_bits_per_byte": 3.0},
    ]
    curves, strange = read_curves(history, 50)
    assert strange == 0
    assert curves["loss"].points == [(5, 1.0, 2.0)] and not curves["loss"].is_validation
    assert curves["step_seconds"].points == [(5, 1.0, 0.5)]
    assert curves["validation_bits_per_byte"].figure == "bits_per_byte"
    assert "step_seconds" not in read_curves(history, None)[0]


def test_values_that_are_no_finite_numbers_are_counted():
    history = [{"step": 1, "seconds": 1.0, "loss": math.nan}, {"step": "x", "seconds": 2.0, "loss": 1.0}, {}]
    curves, strange = read_curves(history, None)
    assert curves == {} and strange == 3


def test_a_thinned_curve_keeps_its_ends_and_extremes():
    points = [(step, float(step), math.sin(step / 50)) for step in range(5000)]
    points[1234] = (1234, 1234.0, 99.0)
    points[4321] = (4321, 4321.0, -99.0)
    kept = thinned(points, 100)
    assert len(kept) <= 100 and kept == sorted(kept)
    assert {points[0], points[-1], points[1234], points[4321]} <= set(kept)
    assert thinned(points[:100], 100) == points[:100]


def test_labels_are_words():
    assert label_of("loss") == "loss (nats)"
    assert label_of("bytes_per_second") == "bytes per second"
    assert label_of("entity_f1") == "entity f1"
    assert RunCurve("validation_loss").as_json()["split"] == "validation"
