# SPDX-License-Identifier: Apache-2.0
"""The tutorial's batch-processing CartPole solver in PyTorch RPC, on CPU. Prints a JSON object: the time of a step of all observers.

After "Implementing Batch RPC Processing Using Asynchronous Executions" of the PyTorch tutorials. The states of a batch are cloned,
since the next step overwrites them before the backward pass. The physics is CartPole-v1's, so no further package is needed.
"""
import argparse
import json
import math
import os
import random
import socket
import threading
import time

os.environ.setdefault("GLOG_minloglevel", "2")  # TensorPipe tells of every shutdown

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributions import Categorical

STEPS = 500


class CartPole:
    def reset(self):
        self.state, self.steps = [random.uniform(-0.05, 0.05) for _ in range(4)], 0
        return self.state

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(theta), math.sin(theta)
        temp = (force + 0.05 * theta_dot * theta_dot * sin) / 1.1
        thetaacc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        xacc = temp - 0.05 * thetaacc * cos / 1.1
        self.state = [x + 0.02 * x_dot, x_dot + 0.02 * xacc, theta + 0.02 * theta_dot, theta_dot + 0.02 * thetaacc]
        self.steps += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * 2 * math.pi / 360
        return self.state, fell or self.steps >= STEPS


class Observer:
    def __init__(self, batch):
        self.id, self.env = rpc.get_worker_info().id - 1, CartPole()
        self.select_action = Agent.select_action_batch if batch else Agent.select_action

    def run_episode(self, agent_rref):
        """Rewards to go: a pole that fell is reset, and every step has the reward 1."""
        state, rewards, start = self.env.reset(), torch.zeros(STEPS), 0
        for step in range(STEPS):
            action = rpc.rpc_sync(agent_rref.owner(), self.select_action, args=(agent_rref, self.id, torch.tensor(state)))
            state, done = self.env.step(action)
            if done or step + 1 == STEPS:
                rewards[start:step + 1] = torch.arange(step + 1 - start, 0, -1)
                start, state = step + 1, self.env.reset()
        return rewards


class Agent:
    def __init__(self, observers, batch):
        self.observers, self.batch = observers, batch
        self.agent_rref = rpc.RRef(self)
        self.policy = torch.nn.Sequential(torch.nn.Linear(4, 128), torch.nn.Dropout(p=0.6), torch.nn.ReLU(), torch.nn.Linear(128, 2),
                                          torch.nn.Softmax(dim=-1))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.ob_rrefs = [rpc.remote(f"observer{k + 1}", Observer, args=(batch,)) for k in range(observers)]
        self.states = torch.zeros(observers, 4)
        self.saved = [] if batch else [[] for _ in range(observers)]
        self.future_actions = torch.futures.Future()
        self.lock, self.pending = threading.Lock(), observers

    @staticmethod
    def select_action(agent_rref, ob_id, state):
        self = agent_rref.local_value()
        m = Categorical(self.policy(state))
        action = m.sample()
        self.saved[ob_id].append(m.log_prob(action))
        return action.item()

    @staticmethod
    @rpc.functions.async_execution
    def select_action_batch(agent_rref, ob_id, state):
        self = agent_rref.local_value()
        self.states[ob_id].copy_(state)
        future_action = self.future_actions.then(lambda future: future.wait()[ob_id].item())
        with self.lock:
            self.pending -= 1
            if self.pending == 0:
                self.pending = self.observers
                m = Categorical(self.policy(self.states.clone()))
                actions = m.sample()
                self.saved.append(m.log_prob(actions))
                future_actions, self.future_actions = self.future_actions, torch.futures.Future()
                future_actions.set_result(actions)
        return future_action

    def run_episode(self):
        futures = [o.rpc_async(timeout=0).run_episode(self.agent_rref) for o in self.ob_rrefs]
        returns = torch.stack(torch.futures.wait_all(futures), dim=1)  # [steps, observers]
        log_probs = torch.stack(self.saved if self.batch else [torch.stack(s) for s in self.saved], dim=0 if self.batch else 1)
        (-log_probs * returns / self.observers).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.saved = [] if self.batch else [[] for _ in range(self.observers)]


def work(rank, options, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    random.seed(rank)
    rpc.init_rpc(f"observer{rank}" if rank else "agent", rank=rank, world_size=options.world_size)
    if rank == 0:
        agent, began = Agent(options.world_size - 1, not options.no_batch), time.monotonic()
        for _ in range(options.num_episode):
            agent.run_episode()
        print(json.dumps({"us_per_step": (time.monotonic() - began) * 1e6 / (options.num_episode * STEPS)}))
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--no-batch", action="store_true")
    parser.add_argument("--num-episode", type=int, default=10)
    options = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(options, port), nprocs=options.world_size, join=True)


if __name__ == "__main__":
    main()
