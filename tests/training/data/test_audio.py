"""Recordings as samples: against soundfile and scipy used directly, the formula of mu-law, and every refusal."""

import math
import tracemalloc

import numpy as np
import pytest
import soundfile
from refusals import refusing
from scipy.signal import resample_poly
from sound_files import encoded, malformed, tone, write_folder

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.training.data.audio import Audio, decoding
from asterism.training.data.audio.baselines import Order2, flac_bits, order2_bits
from asterism.training.data.audio.clips import Clips
from asterism.training.data.audio.decoding import inspect, read_codes, read_samples
from asterism.training.data.audio.mulaw import SILENCE, decode, encode
from asterism.training.data.audio.writing import MOST_COLUMNS, _spectrogram
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.corpora.splits import ArrayPieces


def direct(path, rate):
    """The samples of a file by the libraries alone, and their codes by the formula, one by one."""
    samples, own = soundfile.read(path, dtype="float64", always_2d=True)
    mono = samples.mean(axis=1)
    common = math.gcd(own, rate)
    mono = mono if own == rate else resample_poly(mono, rate // common, own // common)
    return mono, [formula(one) for one in mono.tolist()]


def formula(sample):
    sample = min(1.0, max(-1.0, sample))
    bent = math.copysign(math.log(1 + 255 * abs(sample)) / math.log(256), sample)
    return math.floor((bent + 1) / 2 * 255 + 0.5)


@pytest.mark.parametrize(
    ("format", "subtype", "rate", "channels"),
    [
        ("WAV", "PCM_U8", 8000, 1),
        ("WAV", "PCM_16", 8000, 2),
        ("WAV", "PCM_24", 44100, 2),
        ("WAV", "PCM_32", 48000, 1),
        ("WAV", "FLOAT", 22050, 1),
        ("WAV", "DOUBLE", 12000, 3),
        ("WAV", "ULAW", 8000, 1),
        ("WAV", "PCM_16", 16000, 8),
        ("RF64", "PCM_16", 8000, 1),
        ("WAVEX", "PCM_24", 11025, 6),
        ("FLAC", "PCM_16", 44100, 2),
        ("FLAC", "PCM_24", 12000, 1),
        ("OGG", "VORBIS", 32000, 2),
        ("OGG", "OPUS", 48000, 1),
    ],
)
def test_files_are_read_as_the_libraries_read_them(tmp_path, format, subtype, rate, channels):
    path = tmp_path / "sound"
    path.write_bytes(encoded(1.5 * tone(5000, rate, channels=channels), rate, format, subtype))
    recording = inspect(path)
    samples, codes = direct(path, 12_000)
    assert recording.length(12_000) == len(samples)
    np.testing.assert_allclose(read_samples(recording, 12_000, 0, len(samples)), samples, rtol=0, atol=1e-12)
    assert read_codes(recording, 12_000, 0, len(samples)).tolist() == codes


def test_blocks_hold_the_samples_of_the_whole_recording(tmp_path, monkeypatch):
    """Small blocks, so that filters reach beyond them; windows within, across and at the ends of blocks."""
    path = tmp_path / "sound.flac"
    path.write_bytes(encoded(tone(9001, 44_100, channels=2), 44_100, "FLAC"))
    _, codes = direct(path, 12_000)
    whole = np.array(codes, dtype=np.uint8)
    monkeypatch.setattr(decoding, "BLOCK", 97)
    monkeypatch.setattr(decoding, "SOURCE_BLOCK", 700)
    clips = Clips([inspect(path), inspect(path)], 12_000)
    assert clips.bounds.tolist() == [0, len(whole), 2 * len(whole)]
    assert clips.recordings[0].block(12_000) == 97
    for first, last in ((0, 1), (0, 97), (96, 98), (97, 194), (5, 1000), (len(whole) - 1, len(whole)), (0, len(whole))):
        for begin in clips.bounds[:2].tolist():
            np.testing.assert_array_equal(clips.read(begin + first, begin + last), whole[first:last])


def test_mu_law_is_its_formula():
    samples = np.concatenate([np.linspace(-1.2, 1.2, 999), [0.0, -0.0, 1e-9, -1e-9, 1e300, -1e300]])
    codes = encode(samples)
    assert codes.dtype == np.uint8 and codes.tolist() == [formula(one) for one in samples.tolist()]
    assert encode(np.zeros(3)).tolist() == [SILENCE] * 3
    every = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(encode(decode(every)), every)
    assert decode(every)[[0, 255]].tolist() == pytest.approx([-1.0, 1.0]) and (np.diff(decode(every)) > 0).all()
    assert np.abs(decode(every)).max() <= 1.0


def test_mu_law_loses_as_much_as_that_of_g711():
    """An implementation that is not ours: libsndfile's piecewise law has the same number of codes and like errors."""
    sound = tone(4000, 8000)
    from io import BytesIO

    piecewise = soundfile.read(BytesIO(encoded(sound, subtype="ULAW")), dtype="float64")[0]
    ours = decode(encode(sound[:, 0]))
    assert 0.5 < np.sqrt(np.mean((ours - sound[:, 0]) ** 2) / np.mean((piecewise - sound[:, 0]) ** 2)) < 1.5


def test_a_folder_is_a_corpus(tmp_path):
    folder = write_folder(tmp_path / "sounds")
    (folder / "train" / "notes.txt").write_text("no sound")
    splits = parse_modality("audio(rate=8000, classes=2)").splits(str(folder))
    train = splits.pieces("train")
    assert train.bounds.tolist() == [0, 900, 1810, 2710, 3620] and train.labels.tolist() == [0, 0, 1, 1]
    assert splits.record()["classes"] == ["0", "1"] and splits.record()["clips"]["test"] == 4
    assert splits.notes == ("1 files are left out, which are no recordings, such as train/notes.txt",)
    _, codes = direct(folder / "test" / "1" / "0.wav", 8000)
    test = splits.pieces("test")
    assert test.read(int(test.bounds[2]), int(test.bounds[3])).tolist() == codes
    plain = parse_modality("audio(rate=8000)").splits(str(folder))
    assert plain.pieces("train").labels is None and "classes" not in plain.record()
    hashes = {splits.sha256, plain.sha256, parse_modality("audio(rate=8001)").splits(str(folder)).sha256}
    assert len(hashes) == 3
    assert splits.sha256 == parse_modality("audio(rate=8000, classes=2)").splits(str(folder)).sha256
    (folder / "test" / "1" / "0.wav").write_bytes(encoded(tone(900, 8000, seed=9)))
    assert splits.sha256 != parse_modality("audio(rate=8000, classes=2)").splits(str(folder)).sha256


def test_folders_that_are_no_corpus_are_refused(tmp_path):
    folder = write_folder(tmp_path / "sounds")
    for data, text, message in (
        (None, "audio()", "give a folder of recordings"),
        (tmp_path / "nothing", "audio()", "there is no folder"),
        (folder / "test" / "0" / "0.wav", "audio()", "is a file; give the folder that holds the recordings"),
        (folder, "audio(classes=3)", r"has 2 class folders, but audio\(classes=3\) has 3 classes"),
        (folder / "test" / "0", "audio(classes=3)", "has 0 class folders"),
    ):
        with pytest.raises(DataError, match=message):
            parse_modality(text).splits(None if data is None else str(data))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.mp3").write_bytes(b"ID3")
    with refusing(DataError, "no-recordings", ".wav"):
        Audio().splits(str(tmp_path / "texts"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("audio(rate=999)", "rate=999 must be a whole number from 1,000 to 192,000"),
        ("audio(rate=12000.0)", "rate=12000.0 must be a whole number"),
        ("audio(rate=True)", "rate=True must be"),
        ("audio(rate='12k')", "rate='12k' must be"),
        ("audio(classes=0)", "classes=0 must be from 1 to 65,536"),
        ("audio(hertz=12000)", "audio has no argument 'hertz'"),
    ],
)
def test_settings_that_cannot_be_are_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_modality(text)


def test_a_modality_is_its_text():
    assert str(parse_modality("audio(rate=12000)")) == "audio()"
    assert str(parse_modality("audio(classes=10, rate=8000)")) == "audio(rate=8000, classes=10)"


MALFORMED = malformed()


def test_there_are_65_malformed_files():
    assert len(MALFORMED) >= 65


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_in_one_line(tmp_path, case):
    content, reason = MALFORMED[case]
    path = tmp_path / "train" / "sound.wav"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        Audio().splits(str(tmp_path))
    message = str(caught.value)
    assert message.startswith(f"data: {path} ") and "\n" not in message and len(message) < len(str(path)) + 200
    with pytest.raises(DataError, match=reason) as caught:
        Audio().read_prompt(path)
    assert str(caught.value).startswith(f"prompt: {path} ")


def test_what_is_damaged_inside_is_named_with_its_place_when_it_is_read(tmp_path):
    content = encoded(tone(60_000, 8000), format="FLAC")
    (tmp_path / "train").mkdir()
    path = tmp_path / "train" / "a.flac"
    path.write_bytes(content[: len(content) // 2] + bytes(3000) + content[len(content) // 2 + 3000 :])
    clips = Audio(8000).splits(str(tmp_path)).pieces("train")
    with pytest.raises(DataError, match=rf"data: {path} (cannot be decoded from frame|is cut off: frame) [\d,]+"):
        clips.read(0, len(clips))


def test_a_file_that_has_changed_since_is_refused(tmp_path):
    folder = write_folder(tmp_path / "sounds")
    clips = Audio(8000).splits(str(folder)).pieces("train")
    (folder / "train" / "0" / "0.wav").write_bytes(encoded(tone(100, 8000)))
    with pytest.raises(DataError, match=r"is cut off: frame 100 is missing, of 900"):
        clips.read(0, 900)
    (folder / "train" / "0" / "1.wav").unlink()
    with refusing(DataError, "bad-recording", "1.wav", "cannot be decoded"):
        clips.read(900, 1000)


def test_long_recordings_are_read_in_blocks(tmp_path):
    """80 MB of samples in a file of floats, of which 8 MiB and what the filter makes of them are in memory at once."""
    path = tmp_path / "train" / "long.wav"
    path.parent.mkdir()
    with soundfile.SoundFile(path, "w", 96_000, 4, "FLOAT") as file:
        for _ in range(20):
            file.write(np.zeros((2**18, 4), dtype=np.float32))
    for held_out in ("validation", "test"):  # or the hash decides where it goes, and floats are written with the time
        (tmp_path / held_out).mkdir()
        (tmp_path / held_out / "short.wav").write_bytes(encoded(tone(900, 8000)))
    tracemalloc.start()
    try:
        clips = Audio(12_000).splits(str(tmp_path)).pieces("train")
        end = clips.read(len(clips) - 1000, len(clips))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert end.tolist() == [SILENCE] * 1000
    assert len(clips) == 20 * 2**18 // 8 and peak < 48 * 2**20


def test_blocks_that_were_read_last_are_kept(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "sounds")
    clips = Audio(8000).splits(str(folder)).pieces("train")
    first = clips.read(0, 900)
    monkeypatch.setattr("asterism.training.data.audio.clips.read_codes", None)
    np.testing.assert_array_equal(clips.read(10, 900), first[10:])
    assert clips._block.cache_info().maxsize * decoding.BLOCK <= 64 * 2**20


def test_without_soundfile_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.presence.find_spec", lambda module: None)
    for asked in (lambda: Audio().splits(str(tmp_path)), lambda: Audio().read_prompt(tmp_path / "a.wav")):
        with refusing(ConfigurationError, "package-missing", "soundfile", "audio"):
            asked()


# --- what simple means need ------------------------------------------------------------------------------------------


def witten_bell(training, clips):
    """Bits per sample, by the definition, one sample after the other."""
    followers = {}
    for clip in training:
        known = [256, 256, *clip]
        for at in range(2, len(known)):
            for order in range(3):
                context = tuple(known[at - order : at])
                followers.setdefault(context, {}).setdefault(known[at], 0)
                followers[context][known[at]] += 1
    bits, count = 0.0, 0
    for clip in clips:
        known = [256, 256, *clip]
        for at in range(2, len(known)):
            likely = 1 / 256
            for order in range(3):
                if there := followers.get(tuple(known[at - order : at])):
                    total, kinds = sum(there.values()), len(there)
                    likely = (there.get(known[at], 0) + kinds * likely) / (total + kinds)
            bits, count = bits - math.log2(likely), count + 1
    return bits / count


def array_pieces(clips):
    bounds = np.cumsum([0, *map(len, clips)])
    return ArrayPieces(np.concatenate(clips).astype(np.uint8), bounds)


def test_order_2_is_its_definition(monkeypatch):
    random = np.random.default_rng(0)
    training, clips = (
        [np.clip(np.cumsum(random.integers(-3, 4, size)) + 128, 0, 255) for size in sizes]
        for sizes in ((400, 1, 300), (90, 2, 1, 200))
    )
    expected = witten_bell([one.tolist() for one in training], [one.tolist() for one in clips])
    counted, scored = array_pieces(training), array_pieces(clips)
    assert order2_bits(counted, scored, 0, len(scored)) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr("asterism.training.data.audio.baselines._AT_ONCE", 17)
    assert order2_bits(counted, scored, 0, len(scored)) == pytest.approx(expected, abs=1e-12)
    model = Order2(counted)
    for before in ([130, 131], [7, 9], [256, 256]):
        every = [model.probabilities(np.array([code], dtype=np.uint8), np.array(before))[0] for code in range(256)]
        assert sum(every) == pytest.approx(1.0, abs=1e-12)


def test_flac_is_given_the_codes_and_loses_nothing(monkeypatch):
    """Read again, the file holds the codes; noise of 8 bits takes 8 bits and a header."""
    codes = encode(tone(5000, 8000)[:, 0])
    written = []
    real = soundfile.SoundFile

    class Kept(real):
        def __init__(self, file, **settings):
            written.append(file)
            super().__init__(file, **settings)

    monkeypatch.setattr(soundfile, "SoundFile", Kept)
    bits = flac_bits(ArrayPieces(codes), 100, 5000, 8000)
    assert bits == 8 * len(written[0].getvalue()) / 4900 < 8
    monkeypatch.undo()
    written[0].seek(0)
    again = soundfile.read(written[0], dtype="int16")[0] // 256 + 128
    np.testing.assert_array_equal(again, codes[100:])
    noise = np.random.default_rng(0).integers(0, 256, 200_000).astype(np.uint8)
    assert 8 < flac_bits(ArrayPieces(noise), 0, len(noise), 8000) < 8.5


# --- sounds for people -----------------------------------------------------------------------------------------------


def test_sounds_are_written_and_read_again(tmp_path):
    codes = encode(tone(4000, 8000)[:, 0])
    audio = Audio(8000)
    assert audio.write([codes], tmp_path / "one.wav") == [tmp_path / "one.wav", tmp_path / "one.png"]
    assert soundfile.info(tmp_path / "one.wav").subtype == "PCM_16"
    np.testing.assert_array_equal(audio.read_prompt(tmp_path / "one.wav"), codes)
    files = audio.write([codes[: 100 * (1 + number)] for number in range(11)], tmp_path / "all.wav")
    assert [file.name for file in files] == [*(f"all-{number:02}.wav" for number in range(11)), "all.png"]
    assert soundfile.info(files[3]).frames == 400
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(f.name for f in files), "one.png", "one.wav"])


def test_a_spectrogram_shows_a_tone_where_it_is(tmp_path):
    """The brightest row of the panel is that of 1,000 of 4,000 Hz, a quarter from below; silence draws no warning."""
    from matplotlib.image import imread

    sound = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
    for name, samples in (("tone", sound), ("silence", 0 * sound), ("short", sound[:5])):
        Audio(8000).write([encode(samples)], tmp_path / f"{name}.wav")
    picture = imread(tmp_path / "tone.png")[:, :, :3].sum(axis=2)
    column = picture[:, picture.shape[1] // 3]  # between two numbers of the axis
    panel = np.flatnonzero(column < 1.0)  # magma is dark but for the tone; around the panel all is white
    brightest = panel[0] + np.argmax(column[panel[0] : panel[-1]])
    assert (panel[-1] - brightest) / (panel[-1] - panel[0]) == pytest.approx(0.25, abs=0.03)


def test_the_numbers_of_panels_side_by_side_do_not_run_into_each_other(tmp_path, monkeypatch):
    """As they stand in the picture that is saved: none reaches into the next one, also of times such as 0.025."""
    from matplotlib.figure import Figure

    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *words, **how: (save(figure, *words, **how), drawn.append(figure))
    )
    for count in (1, 2, 5):
        Audio(8000).write([encode(np.zeros(800))] * count, tmp_path / f"{count}.wav")
        panels = drawn[-1].axes[:count]
        renderer = drawn[-1].canvas.get_renderer()
        shown = [tick.label1 for axes in panels for tick in axes.xaxis.get_major_ticks() if 0 <= tick.get_loc() <= 0.1]
        ends = [(box.x0, box.x1) for box in (one.get_window_extent(renderer) for one in shown)]
        assert len(ends) >= 2 * count and all(
            last + 4 < first for (_, last), (first, _) in zip(ends, ends[1:], strict=False)
        )


def test_the_picture_of_a_long_sound_is_not_larger():
    for size in (300, 8_000, 4_000_000):
        seconds, hertz, power = _spectrogram(np.ones(size), 8000)
        assert power.shape == (len(hertz), len(seconds)) == (129, len(seconds)) and len(seconds) < MOST_COLUMNS + 10
        assert seconds[-1] >= (size - 1000) / 8000


def test_completions_stand_behind_their_originals(tmp_path):
    one, other = (encode(tone(size, 8000)[:, 0]) for size in (900, 700))
    files = Audio(8000).write_completions([one, other], [450, 350], [[other, other], [one, one]], tmp_path / "a.wav")
    lengths = [soundfile.info(file).frames for file in files[:-1]]
    assert lengths == [900, 700, 700, 700, 900, 900]


def test_a_sound_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    """The picture is drawn last: if that fails, no sound is there."""
    monkeypatch.setattr("asterism.training.data.audio.writing._spectrogram", None)
    with pytest.raises(TypeError):
        Audio(8000).write([encode(tone(900, 8000)[:, 0])] * 3, tmp_path / "a.wav")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match=r"a-0\.wav cannot be written: No such file or directory"):
        Audio(8000).write([encode(tone(900, 8000)[:, 0])] * 3, tmp_path / "missing" / "a.wav")


def test_a_prompt_that_is_too_long_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.wav").write_bytes(encoded(tone(900, 8000)))
    monkeypatch.setattr("asterism.training.data.audio.audio.LONGEST_PROMPT", 1349)
    with pytest.raises(DataError, match=r"a\.wav has 1,350 samples; a prompt may have at most 1,349: cut it"):
        Audio(12_000).read_prompt(tmp_path / "a.wav")
    with pytest.raises(DataError, match=r"prompt: .*b\.wav cannot be read: No such file or directory"):
        Audio(12_000).read_prompt(tmp_path / "b.wav")


def test_what_would_be_in_the_way_is_refused_before_any_work(tmp_path):
    for name in ("all-00.wav", "all-0.wav", "all.png"):
        (tmp_path / name).write_bytes(b"kept")
        with pytest.raises(CheckpointError, match=rf"{name} exists, but would be written next to .*all\.wav"):
            Audio().refuse_output(tmp_path / "all.wav")
        (tmp_path / name).unlink()
    Audio().refuse_output(tmp_path / "all.wav")
    with refusing(ConfigurationError, "output-suffix", "samples", ".wav"):
        Audio().refuse_output(tmp_path / "all.mp3")
