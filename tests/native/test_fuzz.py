r"""A short run of the fuzz target under AddressSanitizer and UBSan. A long run needs clang and libFuzzer:

    cmake -S agentspec/native -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DAGENTSPEC_PYTHON=OFF -DAGENTSPEC_TESTS=ON -DAGENTSPEC_FUZZ=ON -DAGENTSPEC_SANITIZE=address
    cmake --build build/fuzz --target fuzz_forest
    mkdir -p out/corpus
    build/fuzz/cpp_tests/fuzz_forest -max_total_time=1800 -timeout=10 out/corpus tests/native/cpp/corpus
"""

from __future__ import annotations

from pathlib import Path

from tests.native.support.cpp_build import IS_THOROUGH

CORPUS = sorted(str(path) for path in (Path(__file__).parent / "cpp" / "corpus").iterdir())


def test_the_corpus_has_no_finding(sanitized, tmp_path):
    report = sanitized.run("fuzz_forest", "--last", str(tmp_path / "last"), *CORPUS)
    assert report == f"{len(CORPUS)} inputs, no finding\n"


def test_some_seconds_of_fuzzing_have_no_finding(sanitized, tmp_path):
    run = ["--seconds", "15" if IS_THOROUGH else "2", "--seed", "0", "--last", str(tmp_path / "last")]
    assert "no finding" in sanitized.run("fuzz_forest", *run, *CORPUS)
