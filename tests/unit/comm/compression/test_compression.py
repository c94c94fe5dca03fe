"""Compressed vectors, and the algorithms that send them."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grsgd.algorithms.power_sgd import PowerSGD, orthogonalise
from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.compression import compressors
from grsgd.comm.compression import loops as compression_cpu
from grsgd.comm.compression.compressors import BLOCK, COMPRESSORS, CompressionOptions, make_compressor
from grsgd.comm.compression.error_feedback import ErrorFeedback
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica
from grsgd.testing.quadratic import PROBLEM, STEPS, Job, Problem, Reference, random_speeds
from grsgd.testing.simulated import Ranks
from tests.support.seeded import seeded

LOSSY = [name for name in COMPRESSORS if name != "none"]
every_compressor = pytest.mark.parametrize("name", COMPRESSORS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
STILL = Problem(is_still=True)
PLAIN = {"momentum": 0.0, "weight_decay": 0.0}


def vector(size, dtype=torch.float32, seed=0, device="cpu") -> Flat:
    flat = Flat.zeros(size, dtype, torch.device(device))
    flat.tensor.copy_(torch.from_numpy(np.random.default_rng(seed).standard_normal(size)))
    return flat


def compressor(name, x, ratio=0.1):
    return make_compressor(CompressionOptions(**kind(name, ratio)), x.tensor)


def kind(name, ratio):
    """The options of a compression, of which not all have a ratio."""
    return {"compression": name} | ({"ratio": ratio} if name in ("top-k", "random-k") else {})


def there_and_back(name, x, ratio=0.1, key=(7, 0, 0)):
    """What a receiver makes of x, which has other memory, and the payload's bytes."""
    one = compressor(name, x, ratio)
    payload, out = one.payload(), x.like()
    one.encode(x.tensor, payload.tensor, key)
    received = one.payload()
    received.array[:] = payload.array
    out.tensor.fill_(7)
    compressor(name, x, ratio).decode(received.tensor, out.tensor)
    assert payload.array.nbytes == one.nbytes
    return out.tensor, one.nbytes


@every_dtype
@pytest.mark.parametrize("size", [1, 2, 7, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_bytes(size, dtype):
    item, k, blocks = dtype.itemsize, max(1, round(0.1 * size)), -(-size // BLOCK)
    expected = {
        "none": item * size,
        "top-k": (item + 4) * k,
        "random-k": item * k + 8,
        "int8": size + 4 * blocks,
        "int4": -(-size // 2) + 4 * blocks,
        "sign": -(-size // 8) + 4 * blocks,
    }
    x = vector(size, dtype)
    assert {name: there_and_back(name, x)[1] for name in COMPRESSORS} == expected


@every_dtype
@pytest.mark.parametrize("name", ["none", "top-k", "random-k"])
def test_nothing_is_lost_where_all_is_sent(name, dtype):
    x = vector(100, dtype)
    assert torch.equal(there_and_back(name, x, ratio=1.0)[0], x.tensor)


@every_dtype
def test_top_k_sends_the_largest(dtype):
    x = vector(200, dtype)
    out, _ = there_and_back("top-k", x)
    kept = x.tensor.abs().sort(descending=True).indices[:20]
    expected = torch.zeros_like(x.tensor)
    expected[kept] = x.tensor[kept]
    assert torch.equal(out, expected)


@every_dtype
@every_compressor
@pytest.mark.parametrize("size", [1, 5, compression_cpu.PIECE + 7])
def test_an_encoded_difference_has_the_payload_of_the_difference(name, size, dtype):
    x, y = vector(size, dtype), vector(size, dtype, seed=1)
    one = compressor(name, x)
    payloads = [one.payload() for _ in range(3)]
    one.encode(x.tensor - y.tensor, payloads[0].tensor, (7, 0, 0))
    one.encode_difference(x.tensor, y.tensor, payloads[1].tensor, (7, 0, 0), scratch=x.like().tensor)
    one.encode_difference(x.tensor, y.tensor, payloads[2].tensor, (7, 0, 0), scratch=x.tensor)
    assert payloads[0].array.tobytes() == payloads[1].array.tobytes() == payloads[2].array.tobytes()


def test_random_k_sends_all_in_turn():
    """Other values each time, each as often as the others; the same for the same key."""
    x = vector(50)
    sent = [there_and_back("random-k", x, key=(7, 1, number))[0] != 0 for number in range(400)]
    assert all(each.sum() == 5 for each in sent)
    counts = torch.stack(sent).sum(0)
    assert 20 < counts.min() and counts.max() < 65
    assert torch.equal(sent[3], there_and_back("random-k", x, key=(7, 1, 3))[0] != 0)


@every_dtype
@pytest.mark.parametrize("name, levels", [("int8", 127), ("int4", 7)])
def test_rounding(name, levels, dtype):
    """At most a level away, and right on average; blocks have scales of their own."""
    x = vector(2 * BLOCK + 3, dtype)
    x.tensor[BLOCK : 2 * BLOCK] *= 1e-3
    outs = torch.stack([there_and_back(name, x, key=(7, 0, number))[0] for number in range(300)])
    scale = torch.cat([part.abs().max() / levels * torch.ones_like(part) for part in x.tensor.split(BLOCK)])
    rounding = 2 * torch.finfo(dtype).eps * x.tensor.abs()
    assert ((outs - x.tensor).abs() <= scale * 1.001 + rounding).all()
    assert ((outs.mean(0) - x.tensor).abs() < 0.3 * scale + rounding).all()


def test_sign():
    x = vector(BLOCK + 11)
    x.tensor[5] = 0.0
    out, _ = there_and_back("sign", x)
    for part, whole in zip(out.split(BLOCK), x.tensor.split(BLOCK), strict=True):
        assert torch.allclose(part, torch.where(whole >= 0, 1.0, -1.0) * whole.abs().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 9, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
@pytest.mark.parametrize("name", ["top-k", "int8", "int4", "sign"])
def test_compiled_loops_do_what_tensor_arithmetic_does(name, size, dtype, monkeypatch):
    """Either reads the other's payloads, and finds the same."""
    x, one = vector(size, dtype), compressor(name, vector(size, dtype))
    payloads, outs, both = [one.payload() for _ in range(2)], [], (compressors.loops, lambda x: None)
    for payload, loops in zip(payloads, both, strict=True):
        monkeypatch.setattr(compressors, "loops", loops)
        one.encode(x.tensor, payload.tensor, (7, 0, 0))
    for payload in payloads:
        for loops in both:
            monkeypatch.setattr(compressors, "loops", loops)
            outs.append(torch.full_like(x.tensor, 7))
            one.decode(payload.tensor, outs[-1])
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[2], outs[3])
    rounded = name in ("int8", "int4")  # of the others, means and ties are in another order
    assert torch.equal(outs[0], outs[2]) if rounded else torch.allclose(outs[0], outs[2])


@seeded
@given(size=st.integers(1, 400), k=st.integers(1, 400), same=st.booleans(), seed=st.integers(0, 100))
def test_the_largest_are_found_among_equal_ones_too(size, k, same, seed):
    random, k = np.random.default_rng(seed), min(k, size)
    x = random.choice([-2.0, -1.0, 0.0, 1.0], size) if same else random.standard_normal(size)
    values, indices = np.empty(k), np.empty(k, np.int32)
    compression_cpu.largest(x, None, k, values, indices)
    assert len(set(indices.tolist())) == k and (values == x[indices]).all()
    assert (np.sort(np.abs(values)) == np.sort(np.abs(x))[size - k :]).all()


@pytest.mark.parametrize("sampled, rest", [(100.0, 1.0), (0.0, 1.0)])
def test_the_largest_are_found_if_the_sample_misleads(sampled, rest):
    x = np.arange(1.0, 5001) * rest
    x[np.arange(x.size) % compression_cpu.RUN_EVERY < compression_cpu.RUN] *= sampled
    values, indices = np.empty(500), np.empty(500, np.int32)
    compression_cpu.largest(x, None, 500, values, indices)
    assert (np.sort(values) == np.sort(x)[-500:]).all() and (values == x[indices]).all()


@every_compressor
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_payload_is_added_as_its_vector_is(name, dtype, monkeypatch):
    x, sums = vector(3000, dtype=dtype), torch.randn(2, 3000, dtype=dtype, generator=torch.Generator().manual_seed(1))
    one = compressor(name, x, 0.3)
    payload, decoded, expected = one.payload().tensor, torch.empty_like(x.tensor), sums.clone()
    one.encode(x.tensor, payload, (7, 0, 0))
    one.decode(payload, decoded)
    expected[0].add_(decoded, alpha=1 / 3)
    expected[1].sub_(decoded)
    for loops in (compressors.loops, lambda x: None):
        monkeypatch.setattr(compressors, "loops", loops)
        found = sums.clone()
        one.add(payload, [(1 / 3, found[0]), (-1.0, found[1])], torch.empty_like(x.tensor))
        assert torch.equal(found, expected)


@every_compressor
def test_zeros_stay_zeros(name):
    x = vector(70)
    x.tensor.zero_()
    assert not there_and_back(name, x)[0].any()


@every_compressor
def test_without_content_it_has_the_same_bytes(name):
    one, real = compressor(name, vector(3000, device="meta")), compressor(name, vector(3000))
    payload = one.payload()
    one.encode(vector(3000, device="meta").tensor, payload.tensor, (7, 0, 0))
    one.decode(payload.tensor, vector(3000, device="meta").tensor)
    one.add(payload.tensor, [(0.5, vector(3000, device="meta").tensor)], vector(3000, device="meta").tensor)
    assert payload.array.nbytes == one.nbytes == real.nbytes


@every_compressor
@seeded
@given(size=st.integers(1, 5000), ratio=st.floats(0.001, 1.0), seed=st.integers(0, 1000))
def test_errors_are_fed_back(name, size, ratio, seed):
    """What was sent, and what is left, are all there was."""
    x = vector(size, torch.float64, seed)
    feedback = ErrorFeedback(compressor(name, x, ratio), (7, 0))
    payload, sent, total = feedback.compressor.payload(), torch.zeros_like(x.tensor), torch.zeros_like(x.tensor)
    for number in range(5):
        feedback.encode(x.tensor, payload.tensor, number)
        sent += feedback.decoded
        total += x.tensor
        assert torch.allclose(sent + feedback.e, total, rtol=1e-9, atol=1e-9)
    if name == "none":
        assert not feedback.e.any()


@pytest.mark.parametrize("name", LOSSY)
def test_what_is_left_does_not_grow(name):
    """Of vectors of the same length it stays below that of some of them."""
    x = vector(300, torch.float64)
    feedback = ErrorFeedback(compressor(name, x, 0.3), (7, 0))
    payload, lengths = feedback.compressor.payload(), []
    for number in range(300):
        feedback.encode(vector(300, torch.float64, number).tensor, payload.tensor, number)
        lengths.append(float(feedback.e.norm() / x.tensor.norm()))
    assert max(lengths[150:]) < 1.5 * max(lengths[:150]) < 12


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_vector_that_is_not_finite_is_forgotten(name, value):
    """All of it, so that no rank takes a part of it for a gradient; the next one is as if it had not been."""
    x = vector(300)
    feedback, other = (ErrorFeedback(compressor(name, x), (7, 0)) for _ in range(2))
    payload, out = feedback.compressor.payload(), x.like().tensor
    for one in (feedback, other):
        one.encode(x.tensor, payload.tensor, 0)
    broken = x.tensor.clone()
    broken[17] = value
    feedback.encode(broken, payload.tensor, 1)
    feedback.compressor.decode(payload.tensor, out)
    assert out.isnan().sum() >= min(30, 300 * (name not in ("top-k", "random-k")) or 30)
    feedback.encode(x.tensor, payload.tensor, 2)
    other.encode(x.tensor, payload.tensor, 2)
    assert torch.equal(feedback.e, other.e) and torch.equal(feedback.decoded, other.decoded)
    assert feedback.decoded.isfinite().all()


# ---- ring_allreduce


@pytest.mark.parametrize("n", [2, 3, 5])
def test_all_reduce_where_nothing_is_lost(n):
    whole = Job("ring_allreduce", n).train().X
    for options in ({"compression": "top-k"}, {"compression": "random-k"}):
        X = Job("ring_allreduce", n, ratio=1.0, **options).train().X
        assert (X == X[0]).all() and np.abs(X - whole).max() < 1e-13
        if n == 2:  # a sum of two has one order
            assert (X == whole).all()


class Compressed(Reference):
    """SGD on the mean of what is made of payloads, with error feedback."""

    def __init__(self, n, name, ratio):
        super().__init__(n)
        like = vector(self.X.shape[1], torch.float64)
        self.one, self.E, self.velocity = compressor(name, like, ratio), np.zeros_like(self.X), 0

    def gradient(self, step):
        P = self.E + PROBLEM.gradients(self.X, step)
        out, payload = torch.zeros(P.shape[1], dtype=torch.float64), self.one.payload()
        Q = []
        for rank, p in enumerate(P):
            self.one.encode(torch.from_numpy(p), payload.tensor, (7, rank, step))
            self.one.decode(payload.tensor, out)
            Q.append(out.numpy().copy())
        self.E = P - np.array(Q)
        return np.mean(Q, 0)


@pytest.mark.parametrize("n", [1, 3, 4])
@pytest.mark.parametrize("name", LOSSY)
def test_all_reduce_against_a_dense_reference(name, n):
    job = Job("ring_allreduce", n, **kind(name, 0.3), **PLAIN)
    X = job.train().X
    reference = Compressed(n, name, 0.3)
    for step in range(STEPS):
        g = reference.gradient(step) if n > 1 else PROBLEM.gradients(reference.X, step)[0]
        reference.X = reference.X - job.rate(step) * g
    assert (X == X[0]).all() and np.abs(X - reference.X).max() < 1e-12
    if n > 1:
        assert job.sent() == STEPS * n * (n - 1) * reference.one.nbytes


def test_only_round_the_ring():
    with pytest.raises(ValueError, match='variant = "tree": must be "ring", for compressed payloads'):
        Job("ring_allreduce", 2, compression="sign", variant="tree")


# ---- choco_sgd


@pytest.mark.parametrize("n", [1, 2, 5])
def test_choco_without_compression_mixes_after_the_update(n):
    job = Job("choco_sgd", n, compression="none", gamma=1.0, **PLAIN)
    X = PROBLEM.initial(n)
    W = job.algorithms[0].topology.matrix(0)
    for step in range(STEPS):
        X = W @ (X - job.rate(step) * PROBLEM.gradients(X, step))
    assert np.abs(job.train().X - X).max() < 1e-12


@pytest.mark.parametrize("name", COMPRESSORS)
def test_choco_against_a_dense_reference(name):
    n, gamma = 5, 0.4
    job = Job("choco_sgd", n, **kind(name, 0.3), gamma=gamma, topology="ring", **PLAIN)
    W = job.algorithms[0].topology.matrix(0)
    X = PROBLEM.initial(n)
    one, Xhat = compressor(name, vector(X.shape[1], torch.float64), 0.3), X.copy()
    payload, out = one.payload(), torch.zeros(X.shape[1], dtype=torch.float64)
    for step in range(STEPS):
        X = X - job.rate(step) * PROBLEM.gradients(X, step)
        for rank in range(n):
            one.encode(torch.from_numpy(X[rank] - Xhat[rank]), payload.tensor, (7, rank, step))
            one.decode(payload.tensor, out)
            Xhat[rank] += out.numpy()
        X = X + gamma * (W @ Xhat - Xhat)
    assert np.abs(job.train().X - X).max() < 1e-12
    assert job.sent() == STEPS * n * 2 * one.nbytes


@pytest.mark.parametrize("name", COMPRESSORS)
def test_choco_comes_to_consensus_and_keeps_the_mean(name):
    job = Job("choco_sgd", 4, rate=0.0, **kind(name, 0.3), gamma=0.3)

    def apart(algorithm):
        if algorithm.k == 1:
            algorithm.x.tensor.add_(algorithm.comm.rank)

    mean = job.X.mean(0) + 1.5
    X = job.train(200, after_step=apart).X
    assert np.abs(X.mean(0) - mean).max() < 1e-12 and np.abs(X - mean).max() < 0.02


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "choco_sgd"])
def test_compressed_training_reaches_the_optimum(algorithm, name):
    """Of ranks whose losses differ, near enough for the learning rate."""
    job = Job(algorithm, 4, problem=STILL, rate=0.02, **kind(name, 0.3), **PLAIN).train(600)
    optimum = STILL.optimum(4)
    assert np.abs(job.X.mean(0) - optimum).max() < 0.1 * np.abs(STILL.start - optimum).max()


def test_choco_refuses_graphs_that_take_turns():
    from grsgd.algorithms import ALGORITHMS

    cls = ALGORITHMS["choco_sgd"]
    with pytest.raises(ValueError, match="must be the same in every step"):
        cls.check(cls.Options(topology="one-peer-exponential"), 8)


# ---- diloco


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("n", [2, 3])
def test_diloco_against_a_dense_reference(n, name, fragments):
    """What all have changed, by payloads with error feedback, fragment by fragment."""
    H, lr, momentum = 6, 0.6, 0.5
    job = Job("diloco", n, H=H, outer_lr=lr, outer_momentum=momentum, fragments=fragments, **kind(name, 0.4))
    reference = Reference(n)
    X, size = reference.X, reference.X.shape[1]
    slow, u, E, sent = X[0].copy(), np.zeros(size), np.zeros_like(X), 0
    parts = [slice(size * f // fragments, size * (f + 1) // fragments) for f in range(fragments)]
    for k in range(1, STEPS + 1):
        reference.step(k - 1)
        number, rest = divmod(k, H // fragments)
        if rest:
            continue
        part = parts[(number - 1) % fragments]
        P, Q = E[:, part] + reference.X[:, part] - slow[part], []
        if name == "none":
            Q = P
        else:
            one = compressor(name, vector(P.shape[1], torch.float64), 0.4)
            payload, out = one.payload(), torch.zeros(P.shape[1], dtype=torch.float64)
            for rank, p in enumerate(P):
                one.encode(torch.from_numpy(p.copy()), payload.tensor, (7, rank, k))
                one.decode(payload.tensor, out)
                Q.append(out.numpy().copy())
            sent += n * (n - 1) * one.nbytes
            E[:, part] = P - np.array(Q)
        d = -np.mean(Q, 0)
        u[part] = momentum * u[part] + d
        slow[part] -= lr * (d + momentum * u[part])
        reference.X[:, part] = slow[part]
    job.train()
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert name == "none" or job.sent() == sent


def test_diloco_where_nothing_is_lost():
    whole = Job("diloco", 3, H=5).train().X
    assert np.abs(Job("diloco", 3, H=5, compression="top-k", ratio=1.0).train().X - whole).max() < 1e-12


# ---- the parameter server


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("servers", [1, 2])
def test_server_against_a_dense_reference(name, servers):
    """Bulk synchronous: every worker's gradient at one model, by parts of the servers, with error feedback."""
    n = 3
    options = {"strategy": "bsp", "servers": servers, **kind(name, 0.4)}
    job = Job("parameter_server", n + servers, **options, **PLAIN)
    x = PROBLEM.start.copy()
    E, edges = np.zeros((n, x.size)), [x.size * s // servers for s in range(servers + 1)]
    sent = 0
    for step in range(STEPS):
        P = E + PROBLEM.gradients(np.tile(x, (n, 1)), step)
        Q = np.zeros_like(P)
        for server, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
            one = compressor(name, vector(end - begin, torch.float64), 0.4)
            payload, out = one.payload(), torch.zeros(end - begin, dtype=torch.float64)
            for rank in range(n):
                one.encode(torch.from_numpy(P[rank, begin:end].copy()), payload.tensor, (7, rank, n + server, step))
                one.decode(payload.tensor, out)
                Q[rank, begin:end] = out
            sent += n * (one.nbytes + 8 * (end - begin))
        E, x = P - Q, x - job.rate(step) * Q.mean(0)
    assert np.abs(job.train().average().X - x).max() < 1e-12
    assert job.sent() == sent


def test_asgd_where_nothing_is_lost_is_the_same_bit_for_bit():
    seconds = random_speeds(3)
    whole, same = Job("asgd", 4, seconds), Job("asgd", 4, seconds, compression="top-k", ratio=1.0)
    assert (whole.train().average().X == same.train().average().X).all()


# ---- models that are rounded


ROUNDED = [
    ("grsgd", {}),
    ("grsgd", {"outer_lr": 0.7, "outer_momentum": 0.3}),
    ("gosgd", {"p": 0.5}),
    ("gossip", {"mode": "pair"}),
]


def mean_of(job):
    """The mean of all models, by their weights."""
    return np.mean([algorithm.weight * algorithm.x.array for algorithm in job.algorithms], 0)


@pytest.mark.parametrize("compression", ["int8", "int4"])
@pytest.mark.parametrize("name, options", ROUNDED)
@pytest.mark.parametrize("seed", range(3))
def test_what_rounding_leaves_out_stays_with_the_sender(name, options, compression, seed):
    """Without gradients the weighted sum of all models stays what it is, and they come together but for a level."""
    job = Job(name, 5, random_speeds(seed), rate=0.0, compression=compression, **options)
    job.scatter()
    mean, largest = job.X.mean(0), np.abs(job.X).max()
    levels = {"int8": 127, "int4": 7}[compression]
    job.train(60)
    assert np.abs(mean_of(job) - mean).max() < 1e-12
    if "outer_lr" not in options:
        assert np.abs(job.train(200).X - mean).max() < 8 * largest / levels


@pytest.mark.parametrize("name, options", [*ROUNDED, ("gossip", {"mode": "push"}), ("gossip", {"mode": "pull"})])
def test_rounded_models_are_counted_as_payloads(name, options):
    job = Job(name, 4, compression="int8", **options).train()
    payload = compressor("int8", vector(PROBLEM.size, torch.float64)).nbytes + 8 * (name != "gossip")
    assert job.sent() % payload == 0 and job.sent() > 0
    assert job.nothing_is_left()


@pytest.mark.parametrize("compression", ["int8", "int4"])
@pytest.mark.parametrize("name, options", ROUNDED)
def test_training_with_rounded_models_reaches_the_optimum(name, options, compression):
    job = Job(name, 4, random_speeds(1), problem=STILL, rate=0.02, compression=compression, **options, **PLAIN)
    job.train(600)
    optimum = STILL.optimum(4)
    assert np.abs(mean_of(job) - optimum).max() < 0.25 * np.abs(STILL.start - optimum).max()


def test_a_rounded_message_that_comes_back_brings_its_model():
    """Of a rank that has died: with the weight alone the sum would lack what rounding had left out."""
    job = Job("grsgd", 2, rate=0.0, compression="int4")
    job.scatter()
    one = job.algorithms[0]
    before = one.a * one.x.array.copy()
    send, sent = type(one.mailbox).send.__get__(one.mailbox), []
    one.mailbox.send = lambda *arguments: sent.append(send(*arguments)) or sent[0]
    one.push(1)
    assert np.abs(one.a * one.x.array - before / 2).max() > 1e-3
    one.take_back(sent[0])
    assert one.a == 1 and np.abs(one.a * one.x.array - before).max() < 1e-12


@pytest.mark.parametrize("name", COMPRESSORS)
def test_more_fragments_and_servers_than_parameters(name):
    """Then some have nothing to send."""
    parts = PROBLEM.size + 2
    H = {"H": parts, "fragments": parts}
    assert np.isfinite(Job("diloco", 2, **H, **kind(name, 0.5)).train().X).all()
    job = Job("parameter_server", 2 + parts, servers=parts, strategy="asp", **kind(name, 0.5))
    assert np.isfinite(job.train().X).all()


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "diloco", "asgd"])
def test_a_ratio_of_nothing_is_refused(algorithm):
    for options in ({}, {"compression": "int8"}):
        with pytest.raises(ValueError, match='ratio = 0.1: needs compression = "top-k" or "random-k"'):
            Job(algorithm, 2, ratio=0.1, **options)


def test_adaptive_gossip_sends_parts_of_models_and_rounds_none():
    with pytest.raises(ValueError, match='compression = "int8": whole models are rounded, so adaptive must be false'):
        Job("gossip", 2, compression="int8", adaptive=True)


# ---- power-sgd


class Matrices(torch.nn.Module):
    """Parameters of one, two and four dimensions, of which one is no shorter as two thin matrices."""

    def __init__(self):
        super().__init__()
        for name, shape in {"bias": (5,), "layer": (12, 9), "small": (2, 2), "kernel": (6, 4, 3, 3)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(*shape, dtype=torch.float64)))


def power_sgd_ranks(n, columns):
    """The gradient averages of n simulated ranks: a function of a step's gradients, [n, size]; and their bytes."""
    ranks, replicas = Ranks(n), [Replica(Matrices(), flat_gradients=True) for _ in range(n)]
    powers = [PowerSGD(replica.trained, columns, 7, replica.params.like().tensor) for replica in replicas]

    def average(G):
        for replica, g in zip(replicas, G, strict=True):
            replica.grads.array[:] = g
        ranks.finish(
            power.average(replica.grads.tensor, partial(ring_allreduce, comm, scale=1 / n))
            for power, comm, replica in zip(powers, ranks.comms, replicas, strict=True)
        )
        return np.array([replica.grads.array for replica in replicas])

    return average, powers, ranks


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 2])
def test_power_sgd_against_a_dense_reference(columns, n):
    """As in the paper, matrix by matrix, orthogonalised by QR: the signs of columns cancel in P Q^T."""
    average, powers, _ = power_sgd_ranks(n, columns)
    random, size = np.random.default_rng(n), 5 + 108 + 4 + 216
    E = np.zeros((n, size))
    places = [(slice(5, 113), (12, 9)), (slice(117, 333), (6, 36))]
    Qs = [Q.numpy().copy() for Q in powers[0].Qs]
    for _ in range(4):
        G = random.standard_normal((n, size))
        found = average(G)
        assert (found == found[0]).all()
        E = E + G
        expected = E.mean(0)
        for number, (place, shape) in enumerate(places):
            M = E[:, place].reshape(n, *shape)
            P = np.linalg.qr((M @ Qs[number]).mean(0))[0]
            Qs[number] = (M.transpose(0, 2, 1) @ P).mean(0)
            expected[place] = (P @ Qs[number].T).ravel()
            # The first step's signs are ours, so that the next one begins with the same Q.
            signs = np.sign((Qs[number] * powers[0].Qs[number].numpy()).sum(0))
            Qs[number] = Qs[number] * signs
        E = E - expected
        E[:, :5] = E[:, 113:117] = 0
        assert np.abs(found[0] - expected).max() < 1e-10


def test_power_sgd_keeps_a_gradient_of_that_rank():
    """And feeds back what it leaves out of others: the sum of what was applied and of what is left is all there was."""
    average, powers, ranks = power_sgd_ranks(2, 2)
    random, size = np.random.default_rng(0), 333
    thin = np.zeros(size)
    thin[5:113] = (random.standard_normal((12, 2)) @ random.standard_normal((2, 9))).ravel()
    average(np.tile(thin, (2, 1)))
    assert np.abs(average(np.tile(thin, (2, 1)))[0] - thin).max() < 1e-9
    total, applied = np.zeros((2, size)), np.zeros(size)
    for _ in range(5):
        G = random.standard_normal((2, size))
        total, applied = total + G, applied + average(G)[0]
    left = np.mean([power.e.numpy() for power in powers], 0)
    assert np.abs(applied + left - total.mean(0)).max() < 1e-9
    sent = sum(comm.traffic.sent.sum() for comm in ranks.comms)
    assert sent == 7 * 2 * 8 * ((12 + 6) * 2 + 5 + 4 + (9 + 36) * 2)


@pytest.mark.parametrize("variant", ["ring", "tree"])
def test_power_sgd_trains_a_model_to_equal_replicas(variant):
    """Vectors, as the quadratic's, are sent whole: it is SGD."""
    X = Job("ring_allreduce", 3, compression="power-sgd", variant=variant).train().X
    assert (X == X[0]).all()
    assert np.abs(X - Job("ring_allreduce", 3, variant=variant).train().X).max() < 1e-13


def test_power_sgd_forgets_gradients_that_are_not_finite():
    """All ranks get NaN, and go on as if the step had not been."""
    random = np.random.default_rng(0)
    first, broken, last = random.standard_normal((3, 2, 333))
    broken[1, 40] = math.inf
    ends = []
    for steps in ([first, broken, last], [first, last]):
        average, powers, _ = power_sgd_ranks(2, 2)
        found = [average(G) for G in steps]
        ends.append(found[-1])
        assert np.isfinite(found[-1]).all() and np.isfinite(powers[0].e.numpy()).all()
        if len(steps) == 3:
            assert np.isnan(found[1]).all()
    assert np.abs(ends[0] - ends[1]).max() < 1e-9


def test_orthogonal_columns():
    P = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    P[:, 2] = P[:, 0] - 2 * P[:, 1]
    orthogonalise(P)
    expected = torch.eye(4, dtype=torch.float64)
    expected[2, 2] = 0
    assert torch.allclose(P.T @ P, expected, atol=1e-12)
    zeros = torch.zeros(5, 2)
    orthogonalise(zeros)
    assert not zeros.any()
