from __future__ import annotations


def test_three_replicas_on_two_nodes_answer_like_one_embedded_engine(cluster, tmp_path):
    from tests.ray.support.calls import EXACT, Clients, calls, local_answers
    from tests.ray.support.cluster import ENGINE

    given = calls(24)
    expected = local_answers(given)
    cluster.deploy(engines=3, dtype=EXACT, corpus=str(tmp_path / "corpus"))
    assert len(cluster.processes(ENGINE)) == 3
    clients = Clients(cluster.url, given, 120)
    with clients.running(4):
        pass
    assert clients.answers.problems == []
    assert clients.answers.texts == expected
