import pickle

from airflow_provider_raydatallm.contract.result.errors import SliceError, missing_column


class _CellError(SliceError):
    def __init__(self, row: int, column: str) -> None:
        super().__init__(f"row {row}, column {column}", kind="engine", log={"pid": 7})
        self.row = row


def test_an_error_keeps_its_kind_and_fields_on_the_way_out_of_a_ray_task():
    error = pickle.loads(pickle.dumps(_CellError(4, "name")))
    assert type(error) is _CellError
    assert str(error) == "row 4, column name"
    assert (error.kind, error.log, error.row) == ("engine", {"pid": 7}, 4)


def test_column_that_is_nearly_what_the_argument_says_is_told_whatever_hides_the_others() -> None:
    failure = missing_column("prompt names 'sumary'", "sumary", ["summary", "secret"]).failure
    assert failure.advice == ("Did you mean 'summary'?",)
    assert "secret" not in str(failure.without_row_texts())
    [advice] = missing_column("prompt names 'x'", "x", ["summary"]).failure.advice
    assert advice == "Name another column, or correct the input"
