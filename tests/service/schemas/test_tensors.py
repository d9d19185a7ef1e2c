"""Tensors of the Open Inference Protocol, without an encoding: what a binding has received, bytes or a list."""

from __future__ import annotations

import numpy as np
import pytest

from anytime_service.errors import FieldError
from anytime_service.schemas.oip import tensor_of
from service.serving import columns_model, small_model


@pytest.mark.parametrize("datatype", ["FP64", "FP32", "INT16", "BOOL"])
def test_bytes_and_lists_are_the_same_values(datatype: str) -> None:
    tensor = tensor_of(small_model(), "inputs[0]", "hog", datatype, (3, 2), 3)
    kinds = {"FP64": "<f8", "FP32": "<f4", "INT16": "<i2", "BOOL": "u1"}
    values = np.array([[1, 0], [0, 1], [1, 1]], kinds[datatype])
    assert tensor.nbytes == values.nbytes
    for given in (values.tobytes(), values.tolist(), values.ravel().tolist()):
        np.testing.assert_array_equal(tensor.array(given), values.astype(float))
    with pytest.raises(FieldError, match=r"there are 3 rows; expected 1 to 2") as raised:
        tensor_of(small_model(), "inputs[0]", "hog", datatype, (3, 2), 2)
    assert raised.value.field == "inputs[0].shape"


def test_texts_become_the_indices_of_their_levels() -> None:
    model = columns_model()
    tensor = tensor_of(model, "inputs[0]", "home:town", "BYTES", [2, 1], 5)
    texts = ["Köln", "Bonn"]
    content = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
    assert tensor.nbytes is None
    levels = model.places["home"].expansion.categories[0].labels
    assert [levels[int(code)] for code in tensor.array(content)[:, 0]] == texts
    np.testing.assert_array_equal(tensor.array(texts), tensor.array(content))
