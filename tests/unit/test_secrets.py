"""Secrets are never written down."""

from leverbench.secrets import masked, masked_fields, recorded_environment


def test_only_what_matters_is_recorded_and_secrets_are_masked():
    environment = {
        "HOME": "/h",
        "NCCL_ALGO": "Ring",
        "MY_API_KEY": "s3cret",
        "OWN": "1",
        "ENG_X": "2",
    }

    assert recorded_environment(environment, {"MY_API_KEY": "", "OWN": ""}, "ENG_") == {
        "ENG_X": "2",
        "MY_API_KEY": "***",
        "NCCL_ALGO": "Ring",
        "OWN": "1",
    }


def test_values_of_secret_flags_are_masked():
    argv = ["run", "--api-key", "s3cret", "--api-token=abc", "--max-total-tokens", "64", "--x", "y"]
    argv += ["--env=API_KEY=x", "HF_TOKEN=abc"]

    assert masked(argv) == [
        *("run", "--api-key", "***", "--api-token=***"),
        *("--max-total-tokens", "64", "--x", "y"),
        *("--env=API_KEY=***", "HF_TOKEN=***"),
    ]


def test_effective_arguments_keep_what_counts_tokens():
    fields = {"api_key": "s3cret", "hf_token": "x", "max_total_tokens": 8, "tokenizer_path": "t"}

    assert masked_fields({**fields, "admin_api_key": None}) == {
        "api_key": "***",
        "hf_token": "***",
        "max_total_tokens": 8,
        "tokenizer_path": "t",
        "admin_api_key": None,
    }
