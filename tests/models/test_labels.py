"""Labels: each place predicts the next token, or what a decoder reads the one before of."""

import torch

from asterism.labels import IGNORED, read_and_predicted, shifted, shifted_right, without_first_tokens, without_tokens_at

LABELS = torch.tensor([[5, 6, 7, 8], [9, IGNORED, 3, 4]])


def test_each_place_predicts_the_next():
    assert shifted(LABELS).tolist() == [[6, 7, 8, IGNORED], [IGNORED, 3, 4, IGNORED]]
    assert shifted(LABELS, -1)[:, -1].tolist() == [-1, -1]


def test_a_decoder_reads_the_one_before():
    assert shifted_right(LABELS, start=0, padding=1).tolist() == [[0, 5, 6, 7], [0, 9, 1, 3]]
    assert shifted_right(LABELS[1], start=0, padding=1).tolist() == [0, 9, 1, 3]


def test_a_row_is_read_and_predicted():
    read, predicted = read_and_predicted(LABELS)
    assert read.tolist() == [[5, 6, 7], [9, IGNORED, 3]] and predicted.tolist() == [[6, 7, 8], [IGNORED, 3, 4]]


def test_nothing_predicts_the_first_token_of_a_document():
    wanted = [[IGNORED, 6, IGNORED, 8], [IGNORED, IGNORED, IGNORED, 4]]
    assert without_first_tokens(LABELS, torch.tensor([[0, 1, 0, 1]])).tolist() == wanted
    for starts in ([0, 2], [0, 2, 2, 4]):  # documents without tokens start where the next one does, or behind the row
        assert without_tokens_at(LABELS, torch.tensor(starts)).tolist() == wanted
