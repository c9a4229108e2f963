import pytest

from leverbench.errors import LeverbenchError
from leverbench.imports import import_records
from leverbench.imports.campaign_table import read_campaign_tables
from leverbench.imports.measurement_table import read_measurement_tables
from leverbench.imports.profile_table import read_profile_table
from leverbench.records import read_record

HEAD = "config,parent,lever,concurrency,output_tok_per_s,note"
PROFILE = "profile,category,share_of_decode,kernel,grid_blocks,sm_count,uses_tensor_cores"
OURS = "variant,parent,session,workload,concurrency,output_tok_per_s,valid,machine_device"


@pytest.fixture
def write(tmp_path):
    def write(*lines: str):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,,,1,10,"], None),
        ([], "table.csv: no line below the columns"),
        (["a,,,1,ten,"], "table.csv:2: output_tok_per_s is 'ten'. Write a number"),
        (["a,,,1,nan,"], "output_tok_per_s is 'nan'"),
        (["a,,,1,-3,"], "output_tok_per_s is '-3'"),
        (["a,,,1,0,"], "an output_tok_per_s of 0"),
        (["a,,,1,,"], "table.csv:2: no output_tok_per_s"),
        (["a,,,,10,"], "table.csv:2: no concurrency"),
        (["a,,,1.5,10,"], "concurrency is 1.5"),
        (["a,,,0,10,"], "concurrency is 0"),
        ([",,,1,10,"], "no config"),
        (["a,,,1,10,x,y"], "table.csv:2: 7 cells under 6 columns"),
        (["a,,,1,10,", "", "a,,,1,11,"], "table.csv:4: a second line of a at C=1"),
        (["a,,,1,10,", "b,a,x,1,9,", "b,a,y,8,9,"], "table.csv:4: b has another parent or lever"),
        (["a,,,1,10,", "b,c,x,1,9,"], "table.csv:3: parent c is not in the record"),
        (["a,b,x,1,10,", "b,a,y,1,9,"], "descends from itself"),
    ],
)
def test_a_bad_line_is_named_with_its_cure(write, lines, message):
    path = write(HEAD, *lines)
    if message is None:
        assert list(read_campaign_tables([path]).variants) == ["a"]
        return
    with pytest.raises(LeverbenchError) as error:
        read_campaign_tables([path])

    assert message in str(error.value)
    assert error.value.cure


def test_a_note_tells_settings_that_changed_beside_the_lever(write):
    path = write(HEAD, "a,,,1,10,x 1->2", 'b,a,mtp,1,11,"also page-size: 1 -> 64, tp=2->4 (why)"')
    variants = read_campaign_tables([path]).variants

    assert variants["b"].beside == {"page-size": ("1", "64"), "tp": ("2", "4")}
    assert variants["b"].delta["lever"] == (None, "mtp")
    # A root differs from nothing.
    assert not variants["a"].delta


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x,gemm,39,,,,"], "table.csv:2: a share of 39. Write it as a part of 1"),
        (["x,gemm,39%,,,,"], "share_of_decode is '39%'"),
        (["x,gemm,,,,,"], "no share_of_decode"),
        (["x,gemm,0.5,,,,", "x,moe,0.6,,,,"], "table.csv:3: the shares of profile x add up"),
        (["x,gemm,0.1,,,,", "x,gemm,0.1,,,,"], "a second gemm in profile x"),
        (["x,gemm,0.1,k,some,,"], "grid_blocks is 'some'"),
        (["x,gemm,0.1,k,64,170,maybe"], "uses_tensor_cores is 'maybe'"),
    ],
)
def test_a_bad_line_of_a_profile_is_named(write, lines, message):
    with pytest.raises(LeverbenchError) as error:
        read_profile_table(write(PROFILE, *lines))

    assert message in str(error.value)


def test_a_misspelt_column_is_not_passed_over(write):
    path = write(PROFILE.replace("grid_blocks", "grid_block"), "x,gemm,0.1,k,64,170,")
    with pytest.raises(LeverbenchError, match="there is no column grid_block"):
        read_profile_table(path)
    (profile,) = read_profile_table(write(f"{PROFILE},remark", "x,gemm,0.1,k,64,170,,seen"))
    assert profile.entries[0].blocks == 64


@pytest.mark.parametrize(
    ("name", "concurrency"),
    [("c16", 16), ("decode-C8", 8), ("first", None), ("misc16", None), ("c1 long", 1)],
)
def test_the_concurrency_is_in_a_profiles_name(write, name, concurrency):
    (profile,) = read_profile_table(write(PROFILE, f"{name},gemm,0.1,,,,", f"{name},moe,0.3,,,,"))

    assert profile.concurrency == concurrency
    assert [entry.category for entry in profile.entries] == ["moe", "gemm"]


def test_our_own_columns_are_a_table_as_they_are(write, tmp_path):
    lines = [
        f"{variant},{parent},{session},random,8,{rate},,cpu"
        for session in (1, 2)
        for variant, parent, rate in (("base", "", 100), ("up", "base", 110 + session))
    ]
    path = write(OURS, *lines, "up,base,3,random,8,,false,cpu")
    import_records([path], "table", tmp_path)
    plan = read_record(tmp_path / "results/table/plan.json")
    findings = (tmp_path / "reports/table/findings.md").read_text()

    assert plan["order"] == [["base", 1], ["up", 1], ["base", 2], ["up", 2], ["up", 3]]
    assert "ratio of output tok/s 1.115 (" in findings
    assert "the record does not tell what changed" in findings
    assert "unreplicated" not in findings


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,,1,random,8,,,", "a valid row without output_tok_per_s"),
        ("a,,1,../x,8,10,,", "workload '../x' cannot be part of a file's name"),
        ("a,,one,random,8,10,,", "session is 'one'"),
        ("a,b,1,random,8,10,,", "parent b has no row"),
        ("a,,1,random,8,10,perhaps,", "valid is 'perhaps'"),
    ],
)
def test_a_bad_row_of_ours_is_named(write, line, message):
    with pytest.raises(LeverbenchError) as error:
        read_measurement_tables([write(OURS, line)])

    assert message in str(error.value)


def test_what_is_no_record_is_refused_before_anything_is_written(write, tmp_path):
    profile = tmp_path / "profile.csv"
    profile.write_text(f"{PROFILE}\nc16,gemm,0.1,,,,\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    table = write(HEAD, "a,,,1,10,")
    other = tmp_path / "ours.csv"
    other.write_text(f"{OURS}\na,,1,random,8,10,,\n")
    for files, message in (
        ([profile], "no file of measurements"),
        ([binary], "not a text file"),
        ([tmp_path / "none.csv"], "unreadable"),
        ([table, other], "files of different kinds"),
    ):
        with pytest.raises(LeverbenchError, match=message):
            import_records(files, "x", tmp_path)
    with pytest.raises(LeverbenchError, match="--target -1"):
        import_records([table], "x", tmp_path, target_tok_per_s=-1)
    with pytest.raises(LeverbenchError, match="--parent is for lines of a benchmark"):
        import_records([table], "x", tmp_path, parent="a")
    table.write_text("when,what\n1,2\n")
    with pytest.raises(LeverbenchError, match=r"table\.csv:1: no record that is known"):
        import_records([table], "x", tmp_path)

    assert not (tmp_path / "results").exists()
