"""The Ray job of the bench: classifies images on the head or on workers, as it is told line by line.

Each line on standard input is a request in JSON: where ("head" or "workers"), network, batch, seconds. The answer is a
line with the response time of every batch. Weights and images are generated from a seed: what they mean does not
matter, what they cost does.
"""

import json
import sys
import time

import numpy as np
import ray


# How many seconds a batch may take before Ray has failed.
PATIENCE = 60


class Network:
    """Depthwise separable convolutions (MobileNet, Howard et al. 2017), normalisation folded into the weights."""

    # Name: side of the image, then channels and stride of each layer.
    SHAPES = {
        "small": (224, [(24, 2), (48, 1), (96, 2), (96, 1), (192, 2), (192, 1), (384, 2)]),
        "large": (288, [(32, 2), (48, 1), (96, 2), (96, 1), (96, 1), (192, 2), (192, 1), (192, 1), (384, 2)]),
    }
    CLASSES = 1000

    def __init__(self, name, seed=1):
        self.side, layers = self.SHAPES[name]
        rng = np.random.default_rng(seed)

        def weights(*shape):
            return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

        self.layers, before = [], 3
        for channels, stride in layers:
            # Twice the variance, because half of what comes is cut off at zero.
            self.layers.append((1.4 * weights(9, before), 1.4 * weights(before, channels), 0.1 * weights(1, channels), stride))
            before = channels
        self.classifier = weights(before, self.CLASSES)
        # Untrained weights find much the same in all images: what counts is the difference from the others.
        self.usual = 0
        self.usual = sum(self.scores(image(rng, self.side)) for _ in range(8)) / 8

    def classify(self, image):
        return int(np.argmax(self.scores(image)))

    def scores(self, image):
        x = image.astype(np.float32) / 128 - 1
        for depthwise, pointwise, bias, stride in self.layers:
            rows, columns, _ = x.shape
            padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
            sums = 0
            for tap in range(9):
                at = padded[tap // 3 : tap // 3 + rows : stride, tap % 3 : tap % 3 + columns : stride]
                sums = sums + at * depthwise[tap]
            x = np.clip(sums @ pointwise + bias, 0, 6)
        return x.mean(axis=(0, 1)) @ self.classifier - self.usual


def image(rng, side):
    """Coloured squares, eight by eight: noise alone would look the same to any network."""
    return np.kron(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), np.ones((side // 8, side // 8, 1), dtype=np.uint8))


@ray.remote(max_restarts=0)
class Classifier:
    """One on the head and one on every worker. Ray calls the thread that works as the class: ray::Classifier."""

    def __init__(self):
        self.networks = {name: Network(name) for name in Network.SHAPES}

    def classify(self, name, images):
        return [self.networks[name].classify(image) for image in images]


def main():
    address, workers = sys.argv[1], int(sys.argv[2])
    ray.init(address=address, log_to_driver=False)

    def on(resource):
        return Classifier.options(num_cpus=0, resources={resource: 1}).remote()

    places = {"head": [on("head")], "workers": [on(f"worker-{i}") for i in range(workers)]}
    rng = np.random.default_rng(2)
    images = {name: [image(rng, side) for _ in range(16)] for name, (side, _) in Network.SHAPES.items()}
    expected = {name: [Network(name).classify(image) for image in images[name]] for name in images}
    for actors in places.values():
        for name in images:
            ray.get([actor.classify.remote(name, images[name][:1]) for actor in actors])
    print(json.dumps({"ready": True}), flush=True)

    for line in sys.stdin:
        wanted = json.loads(line)
        actors, name, batch = places[wanted["where"]], wanted["network"], wanted["batch"]
        responses, wrong, count = [], 0, 0
        end = time.monotonic() + wanted["seconds"]
        while time.monotonic() < end:
            chosen = [(count + i) % 16 for i in range(batch)]
            began = time.monotonic()
            shares = [chosen[i :: len(actors)] for i in range(len(actors))]
            answers = ray.get(
                [actor.classify.remote(name, [images[name][i] for i in share]) for actor, share in zip(actors, shares)],
                timeout=PATIENCE,
            )
            responses.append(time.monotonic() - began)
            for share, answer in zip(shares, answers):
                wrong += sum(expected[name][i] != found for i, found in zip(share, answer))
            count += batch
        print(json.dumps({"responses_s": responses, "images": count, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main()
