"""Programs that tests run in processes of their own.

Here: a small training on the device ``NAME:0``, for drivers that are installed. Not here: tests; programs of one test.
"""

TRAINING = """
import polygrad as pg
pg.set_device("NAME:0")
pg.random.seed(3)
x = pg.random.normal((64, 4), dtype=pg.float32)
y = pg.sin(x) @ pg.asarray([[1.0], [-2.0], [0.5], [3.0]], dtype=pg.float32)
model = pg.nn.Sequential(pg.nn.Linear(4, 16), pg.nn.Tanh(), pg.nn.Linear(16, 1))
optimizer = pg.optim.AdamW(model, lr=2e-2)
losses = []
for _ in range(40):
    optimizer.zero_grad()
    loss = pg.mean((model(x) - y) ** 2)
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
assert losses[-1] < 0.3 * losses[0], losses
"""
