"""How many of similar lines are logged, and how many are said to be missing."""

from epp.system.line_quota import LineQuota


def test_the_lines_between_two_about_a_subject_are_counted_by_the_next():
    quota = LineQuota(10.0)
    asked = [("a", 0), ("a", 1), ("b", 2), ("a", 9.9), ("a", 10), ("b", 12), ("a", 20)]
    assert [quota.take(*each) for each in asked] == [0, None, 0, None, 2, 0, 0]


def test_of_any_number_of_subjects_few_are_remembered():
    quota = LineQuota(10.0)
    for number in range(3_000):
        assert quota.take(f"subject {number}", 0) == 0
        assert quota.take(f"subject {number}", 1) is None
    assert max(len(quota._passed), len(quota._left_out)) <= 1_000
