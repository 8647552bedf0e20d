"""Your own data: every format gives the same data set, and a wrong file is told row by row."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from binep.data import own
from binep.data.dataset import Dataset

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 1, 4, 5), dtype=np.uint8)
MARKS = np.arange(12) % 3
SHORT = PIXELS[:, :, :, :0]
LATER = {"x_train": PIXELS, "y_train": MARKS, "x_test": PIXELS, "y_test": MARKS + 1}
OTHERS = {**LATER, "x_test": PIXELS.reshape(12, 20)}
VECTORS = PIXELS.reshape(12, 20)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}i", *array.shape)
    return head + array.astype(">u1").tobytes()


def write_npz(folder: Path) -> Path:
    np.savez(folder / "mine.npz", images=PIXELS, labels=MARKS)
    return folder / "mine.npz"


def write_keras(folder: Path) -> Path:
    arrays = {"x_train": PIXELS[:9], "y_train": MARKS[:9], "x_test": PIXELS[9:]}
    np.savez(folder / "mine.npz", **arrays, y_test=MARKS[9:])
    return folder / "mine.npz"


def write_npy(folder: Path) -> Path:
    np.save(folder / "mine.npy", PIXELS[:, 0])
    np.save(folder / "mine-labels.npy", MARKS.astype(float))
    return folder / "mine.npy"


def write_csv(folder: Path) -> Path:
    names = ",".join(["label", *(f"p{n}" for n in range(20))])
    rows = [f"{m}," + ",".join(map(str, row)) for m, row in zip(MARKS, VECTORS, strict=True)]
    (folder / "mine.csv").write_text("\n".join([names, *rows]))
    return folder / "mine.csv"


def write_pictures(folder: Path) -> Path:
    for n, (image, mark) in enumerate(zip(PIXELS, MARKS, strict=True)):
        place = folder / "mine" / ("train" if n < 9 else "test") / str(mark)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(place / f"{n:02}.png")
    return folder / "mine"


def write_idx(folder: Path) -> Path:
    for start, part in (("train", slice(9)), ("t10k", slice(9, None))):
        name = f"{start}-images-idx3-ubyte.gz"
        (folder / name).write_bytes(gzip.compress(idx(PIXELS[part, 0])))
        (folder / f"{start}-labels-idx1-ubyte").write_bytes(idx(MARKS[part]))
    return folder


def pairs(dataset: Dataset) -> list[set[tuple[bytes, int]]]:
    """What is in each split, whatever the order and the shape of a sample."""
    return [
        {(i.numpy().tobytes(), int(m)) for i, m in zip(s.images, s.labels, strict=True)}
        for s in (dataset.train, dataset.test)
    ]


@pytest.mark.parametrize(
    "write", [write_npz, write_keras, write_npy, write_csv, write_pictures, write_idx]
)
def test_every_format_gives_the_same_samples(write, tmp_path: Path):
    found = own.read(write(tmp_path), test=0.25, seed=3)
    shape = (20,) if write is write_csv else (1, 4, 5)
    assert (found.image_shape, found.classes, found.class_names) == (shape, 3, ("0", "1", "2"))
    assert found.train.images.dtype == torch.uint8
    assert (len(found.train), len(found.test)) == (9, 3)
    expected = {(p.tobytes(), int(m)) for p, m in zip(PIXELS, MARKS, strict=True)}
    assert set.union(*pairs(found)) == expected
    if write in (write_keras, write_pictures, write_idx):
        assert pairs(found)[1] == {
            (p.tobytes(), int(m)) for p, m in zip(PIXELS[9:], MARKS[9:], strict=True)
        }


def test_a_seed_decides_what_is_kept_for_testing():
    one, same, other = (own.from_arrays(PIXELS, MARKS, seed=s) for s in (0, 0, 1))
    assert own.fingerprint(one) == own.fingerprint(same) != own.fingerprint(other)
    assert pairs(one) == pairs(same) != pairs(other)


def test_a_fingerprint_tells_one_changed_pixel():
    changed = PIXELS.copy()
    changed[5, 0, 2, 2] ^= 1
    found = {own.fingerprint(own.from_arrays(p, MARKS)) for p in (PIXELS, changed)}
    assert len(found) == 2


@pytest.mark.parametrize("samples", [PIXELS, VECTORS, VECTORS / 7.0 - 3])
def test_normalised_data_has_mean_zero_and_deviation_one(samples: np.ndarray):
    found = own.from_arrays(samples, MARKS, normalise=True)
    seen = found.inputs(found.train.images).double()
    over = (0, 2, 3) if seen.dim() == 4 else (0,)
    torch.testing.assert_close(
        seen.mean(over), torch.zeros_like(seen.mean(over)), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(seen.std(over, correction=0), torch.ones_like(seen.mean(over)))


def test_words_are_classes_and_numbers_stay_what_they_are(tmp_path: Path):
    rows = ["5.1,3.5,setosa", "7.0,-3.2,versicolor"] * 4
    (tmp_path / "iris.csv").write_text("\n".join(rows))
    found = own.read(tmp_path / "iris.csv")
    assert found.class_names == ("setosa", "versicolor") and found.name == "iris"
    assert found.train.images.dtype == torch.float32
    assert {tuple(row) for row in found.train.images.tolist()} == {
        tuple(np.float32(row).tolist()) for row in ([5.1, 3.5], [7.0, -3.2])
    }


def test_torch_data_sets_are_taken_too():
    rows = torch.utils.data.TensorDataset(torch.from_numpy(PIXELS), torch.from_numpy(MARKS))
    loader = torch.utils.data.DataLoader(rows, batch_size=5, shuffle=True)
    assert own.fingerprint(own.from_torch(loader)) == own.fingerprint(
        own.from_arrays(PIXELS, MARKS)
    )


def table(text: str):
    def write(folder: Path) -> Path:
        (folder / "t.csv").write_text(text)
        return folder / "t.csv"

    return write


def arrays(**named):
    def write(folder: Path) -> Path:
        np.savez(folder / "t.npz", **named)
        return folder / "t.npz"

    return write


def of_two_sizes(folder: Path) -> Path:
    for name, side in (("a", 4), ("b", 5)):
        (folder / "p" / name).mkdir(parents=True)
        Image.fromarray(PIXELS[0, 0][:side, :side]).save(folder / "p" / name / "1.png")
    return folder / "p"


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (table("a,b,label\n1,2,x\n1,oops,y\n"), "line 3, column 2 is 'oops': allowed are numbers"),
        (table("1,2,0\n1,2\n"), "line 2 has 2 columns, the first has 3"),
        (table("1\n2\n"), "one column only"),
        (table(""), "is empty"),
        (table("1,2,x\n3,4,x\n5,6,x\n"), "one class only, x"),
        (table("1,2,x\n3,4,\n"), "row 1 has no label"),
        (arrays(pictures=PIXELS), "holds pictures: allowed are images"),
        (arrays(images=PIXELS, labels=MARKS[:5]), r"labels of shape \(5,\) for 12 samples"),
        (
            arrays(images=np.where(MARKS == 2, np.nan, VECTORS.T).T, labels=MARKS),
            "row 2 holds",
        ),
        (arrays(images=SHORT, labels=MARKS), "none of them 0"),
        (arrays(images=PIXELS, labels=MARKS + 0.5), "label of row 0 is 0.5"),
        (arrays(**LATER), "label of row 2 is 3"),
        (arrays(**OTHERS), "allowed are equal"),
        (of_two_sizes, "all images must be as the first"),
        (lambda folder: folder, "one for each class"),
        (lambda folder: folder / "none.npz", "no such file"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a_wrong_file_gets_one_line(write, told: str, tmp_path: Path):
    with pytest.raises(ValueError, match=told) as error:
        own.read(write(tmp_path))
    assert "\n" not in str(error.value)


def test_an_object_array_is_never_unpickled(tmp_path: Path):
    np.save(tmp_path / "t.npy", np.array([print], dtype=object), allow_pickle=True)
    np.save(tmp_path / "t-labels.npy", MARKS)
    with pytest.raises(ValueError, match=r"t\.npy: not readable"):
        own.read(tmp_path / "t.npy")


def test_features_far_from_zero_are_told_before_a_network_learns_nothing_from_them():
    draw, labels = np.random.default_rng(0).normal(size=(60, 3)), ["no", "yes"] * 30
    for samples, far in ((draw, False), (draw + np.array([0, 7, 0]), True), (9 * draw, True)):
        advice = own.scale_advice(own.from_arrays(samples.astype(np.float32), labels))
        assert "data.normalise=true" in (advice or "") if far else advice is None
    pixels = np.full((60, 3), 255, np.uint8)
    assert own.scale_advice(own.from_arrays(pixels, labels)) is None
