"""Parts of pages on recorded jobs: what they say is what the recorded tables say."""

import pytest

from experiments.survival import hosts, page
from experiments.survival.own_loops import Job

JOB = hosts.Job("diloco", "10mbit", 2, 60.0, 4.0, 0, 3, 0, 250.0, 200.0, "4.5 7 6", 0.9, 0.92, 0.995, "", "abc")


@pytest.mark.parametrize("part", page.parts(), ids=lambda part: part.name)
def test_pages_have_the_numbers_of_the_recorded_jobs(part):
    text = part.path.read_text()
    assert part.text in text and part.put_into(text) == text


def test_a_part_is_replaced_and_nothing_else():
    before = "one\n<!-- recorded: hosts -->\nold\n<!-- end of recorded -->\ntwo\n"
    new = page.Part(page.FINDINGS / "goodput.md", "hosts", "new")
    after = "one\n<!-- recorded: hosts -->\n\nnew\n\n<!-- end of recorded -->\ntwo\n"
    assert new.put_into(before) == after == new.put_into(after)
    assert new._replace(name="other").put_into(before) == before


def test_jobs_that_failed_are_counted():
    text = page.text_of_lost_hosts([JOB, JOB._replace(exit_code=1, losses=2, commit="def")])
    assert "In 2 jobs 5 hosts were lost; 1 of the jobs ended with exit code 0" in text and "`abc`, `def`" in text


def test_own_loops_have_a_row_per_algorithm_and_number_of_spares():
    numbers = "1.002", "1", "2.5", "2", "abc"
    jobs = [Job(number, "grsgd", 0, "0:0.5,1:0.6", number // 3, 1, *numbers) for number in range(4)]
    text = page.text_of_own_loops(jobs, [jobs[0]._replace(seconds="4")])
    assert "with 4 jobs of" in text and "Of these jobs, 3 ended with exit code 0 and a loss at most 1 % from" in text
    assert "largest difference is 0.20 %" in text and "commit `abc`;" in text
    assert text.endswith("\n  | `grsgd` | 0 | 4 | 3 | 80 % (80) | 50 % (50) |")


def test_storms_have_a_row_per_algorithm_and_rate_of_kills():
    common = {"algorithm": "diloco", "kills_per_hour": "69.0", "participation": "1.0", "commit": "abc"}
    runs = [
        common | {"is_calm": "1", "deaths": "0", "steps": "100", "accuracy": "0.9"},
        common | {"is_calm": "0", "deaths": "3", "steps": "95", "accuracy": "0.8"},
        common | {"is_calm": "0", "deaths": "4", "steps": "85", "accuracy": "0.9"},
    ]
    row = "| `diloco` | 69 | 2 | 7 | 90.0 % (85.0) | 100.0 % | 85.0 %, 90.0 % |"
    assert row in page.text_of_storms(runs).splitlines()
