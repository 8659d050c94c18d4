# SPDX-License-Identifier: Apache-2.0
"""The tutorial's batch-processing CartPole solver in PyTorch RPC, on CPU, with the options of examples/cartpole.

After "Implementing Batch RPC Processing Using Asynchronous Executions" of the PyTorch tutorials, with what a CPU needs: the
states of a batch are cloned, since the next step overwrites them before the backward pass. The physics is CartPole-v1's, coded
here, so that no further package is needed.
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
import torch.nn.functional as F
from torch.distributions import Categorical


class CartPole:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def reset(self):
        self.state, self.steps = [self.random.uniform(-0.05, 0.05) for _ in range(4)], 0
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
        return self.state, fell or self.steps >= 500


class Policy(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.affine1 = torch.nn.Linear(4, options.hidden)
        self.dropout = torch.nn.Dropout(p=options.dropout)
        self.affine2 = torch.nn.Linear(options.hidden, 2)

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=-1)


class Observer:
    def __init__(self, options):
        self.id, self.options = rpc.get_worker_info().id - 1, options
        self.envs = [CartPole(options.seed * 1000003 + self.id * 4099 + k) for k in range(options.envs)]
        self.select_action = Agent.select_action if options.no_batch else Agent.select_action_batch

    def run_episode(self, agent_rref):
        steps, gamma = self.options.steps, self.options.gamma
        states = [env.reset() for env in self.envs]
        rewards = torch.zeros(steps, len(self.envs))
        start, first = [0] * len(self.envs), [0] * len(self.envs)
        for step in range(steps):
            state = torch.tensor(states)
            actions = rpc.rpc_sync(agent_rref.owner(), self.select_action, args=(agent_rref, self.id, state))
            for k, env in enumerate(self.envs):
                states[k], done = env.step(actions[k])
                rewards[step, k] = 1
                if done or step + 1 >= steps:
                    to_go = 0.0
                    for i in range(step, start[k] - 1, -1):
                        to_go = rewards[i, k].item() + gamma * to_go
                        rewards[i, k] = to_go
                    first[k] = first[k] or step + 1
                    start[k], states[k] = step + 1, env.reset()
        return rewards, sum(first) / len(first)


class Agent:
    def __init__(self, options):
        self.options, self.observers = options, options.world_size - 1
        self.agent_rref = rpc.RRef(self)
        self.policy = Policy(options)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=options.lr)
        self.ob_rrefs = [rpc.remote(f"observer{k + 1}", Observer, args=(options,)) for k in range(self.observers)]
        self.states = torch.zeros(self.observers, options.envs, 4)
        self.saved = [[] for _ in range(self.observers)] if options.no_batch else []
        self.future_actions = torch.futures.Future()
        self.lock, self.pending, self.evaluations = threading.Lock(), self.observers, 0

    @staticmethod
    def select_action(agent_rref, ob_id, state):
        self = agent_rref.local_value()
        m = Categorical(self.policy(state))
        action = m.sample()
        self.saved[ob_id].append(m.log_prob(action))
        self.evaluations += 1
        return action.tolist()

    @staticmethod
    @rpc.functions.async_execution
    def select_action_batch(agent_rref, ob_id, state):
        self = agent_rref.local_value()
        self.states[ob_id].copy_(state)
        future_action = self.future_actions.then(lambda future: future.wait()[ob_id].tolist())
        with self.lock:
            self.pending -= 1
            if self.pending == 0:
                self.pending = self.observers
                m = Categorical(self.policy(self.states.clone()))
                actions = m.sample()
                self.saved.append(m.log_prob(actions))
                self.evaluations += 1
                future_actions, self.future_actions = self.future_actions, torch.futures.Future()
                future_actions.set_result(actions)
        return future_action

    def run_episode(self):
        futures = [o.rpc_async(timeout=0).run_episode(self.agent_rref) for o in self.ob_rrefs]
        returned = torch.futures.wait_all(futures)
        returns = torch.stack([r[0] for r in returned], dim=1)  # [steps, observers, envs]
        if self.options.normalise:
            returns = (returns - returns.mean()) / (returns.std() + torch.finfo(torch.float32).eps)
        if self.options.no_batch:
            log_probs = torch.stack([torch.stack(s) for s in self.saved], dim=1)
        else:
            log_probs = torch.stack(self.saved)
        (-log_probs * returns / (self.observers * self.options.envs)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.saved = [[] for _ in range(self.observers)] if self.options.no_batch else []
        return sum(r[1] for r in returned) / len(returned)


def agent(options):
    agent, rewards, running = Agent(options), [], 0.0
    began = time.monotonic()
    for episode in range(options.num_episode):
        rewards.append(agent.run_episode())
        running = 0.5 * rewards[-1] + 0.5 * running
        if not options.quiet:
            print(f"Episode {episode}\tLast reward: {rewards[-1]:.2f}\tAverage reward: {running:.2f}", flush=True)
    seconds = time.monotonic() - began
    result = {"mode": "no-batch" if options.no_batch else "batch", "world_size": options.world_size, "seconds": seconds,
              "us_per_step": seconds * 1e6 / max(options.num_episode * options.steps, 1),
              "policy_evaluations": agent.evaluations, "rewards": rewards}
    if options.report:
        with open(options.report, "w", encoding="utf-8") as file:
            json.dump(result, file)
    elif not options.quiet:
        print(json.dumps(result))


def work(rank, options, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed + rank)
    rpc.init_rpc(f"observer{rank}" if rank else "agent", rank=rank, world_size=options.world_size)
    if rank == 0:
        agent(options)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--no-batch", action="store_true")
    parser.add_argument("--num-episode", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=543)
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--dropout", type=float, default=0.6)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--normalise", action="store_true")
    parser.add_argument("--report")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(options, port), nprocs=options.world_size, join=True)


if __name__ == "__main__":
    main()
