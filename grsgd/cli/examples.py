"""The text below the options in the help of each command."""

KEYS = "`grsgd config` lists all keys of a configuration, `grsgd algorithms NAME` those of an algorithm."

TOP = """\
examples:
  grsgd demo
  grsgd train experiments/demo/dpsgd.toml --check --ranks 4
  grsgd run -n 4 experiments/demo/dpsgd.toml --set train.epochs=5 --out mine.h5
  grsgd simulate experiments/demo/dpsgd.toml --ranks 64 --network 1gbit,50us --timing-only
  grsgd report mine.h5

What there is: grsgd config (keys of a configuration), grsgd algorithms, grsgd models, grsgd data list.
"""

COMMANDS = {
    "demo": """\
Trains ring_allreduce, dpsgd and grsgd, one after the other; prints the table and the path of the plot at the end.

  grsgd demo --out results
  grsgd demo --copy experiments/demo
  grsgd run -n 4 experiments/demo/grsgd.toml --set optimizer.lr=0.02
""",
    "sweep": f"""\
Every combination is a run of its own, one after the other. A run that is there with the same configuration, ranks,
options, networks and own code is not made again, so the same command goes on where it was left.

  grsgd sweep -n 4 --vary seed=0,1,2 --vary optimizer.lr=0.05,0.1 --out sweep experiments/demo/dpsgd.toml
  grsgd sweep -n 16 --vary seed=0,1,2 --simulate experiments/demo/dpsgd.toml --network 1gbit,50us
  grsgd report --group mean sweep/*.h5

{KEYS}
""",
    "train": f"""\
Every rank reads the configuration, trains, and sends what its algorithm says; rank 0 writes one run file.

  mpiexec -n 4 grsgd train experiments/demo/dpsgd.toml --set optimizer.lr=0.02 --out mine.h5
  grsgd train experiments/demo/dpsgd.toml --check --ranks 4

{KEYS}
""",
    "run": f"""\
Finds mpiexec or srun, sets what they need on this machine, and starts a configuration or a script of your own.

  grsgd run -n 4 experiments/demo/dpsgd.toml --set train.epochs=5
  grsgd run -n 4 experiments/demo/own_loop.py

{KEYS}
""",
    "simulate": f"""\
All ranks train in this process, and the time of messages is calculated: how fast an algorithm would be elsewhere.

  grsgd simulate experiments/demo/grsgd.toml --ranks 16 --network 1gbit,50us --out simulated.h5
  grsgd simulate experiments/demo/grsgd.toml --ranks 32 --network 25gbit,10us --topology hosts:8x4 --timing-only

{KEYS}
""",
    "replay": """\
Every rank does its operations when those have ended, or begun, that they wait for; messages share the network.

  grsgd simulate experiments/demo/grsgd.toml --ranks 16 --network 1gbit,50us --trace run.goal
  grsgd replay run.goal --network 100mbit,1ms
""",
    "evaluate": """\
A run file leads to the model that its run has saved; or name a model and the configuration that it is of.

  grsgd train experiments/demo/dpsgd.toml --out mine.h5 --save mine.pt
  grsgd evaluate mine.h5
  grsgd evaluate mine.pt experiments/demo/dpsgd.toml --set data.only_test=100
""",
    "calibrate": """\
What it writes is a network that simulated runs take, with the times of this machine or cluster in it.

  mpiexec -n 2 grsgd calibrate experiments/demo/dpsgd.toml --out network.toml
  grsgd simulate experiments/demo/dpsgd.toml --network network.toml
""",
    "report": """\
A row for each run, side by side; of a single run also a row for each rank.

  grsgd report results/*.h5
""",
    "plot": """\
Several runs are drawn in one figure, each in a colour of its own.

  grsgd plot results/*.h5 -o runs.png
""",
    "config": """\
Any of them can be written in the file or given as --set KEY=VALUE.

  grsgd config
  grsgd config train schedule.name
""",
    "algorithms": """\
Without a name: a table. An algorithm's options are the further keys of [algorithm] in a configuration.

  grsgd algorithms
  grsgd algorithms grsgd mine.py:MyAlgorithm
""",
    "models": """\
Without a name: a table. A model's options are the further keys of [model] in a configuration.

  grsgd models mlp
""",
    "data": """\
Some sets lie in Python packages; the others are downloaded once, and checked.

  grsgd data list
  grsgd data fetch mnist cifar-10 --data-dir data
""",
    "coding-cost": """\
In units of the model's size, counted once for a multicast and once for each of its receivers.

  grsgd coding-cost --ranks 10
""",
    "topology": """\
Sends to: how many others, in a step, at most. Graphs: how many take turns. Steps: until mixing alone has left 1 % of
the differences between the models, or nothing but rounding.

  grsgd topology --ranks 16
  grsgd topology ring base-2 mine.txt --ranks 8
""",
    "bound": """\
The least time in which the workers can compute the B gradients of one update: the smallest t with
sum floor(t / h_i) >= B, where a step of worker i takes h_i. Reports of runs with a server show how near they came.

  grsgd bound experiments/demo/parameter_server.toml --ranks 5 --compute constant:0.1 --set algorithm.strategy=rennala
  grsgd bound experiments/demo/parameter_server.toml --step-seconds 0.1,0.1,0.1,1.0 --gradients 6
""",
    "completion": """\
The script completes commands, options, files, and names of algorithms.

  bash:  echo 'eval "$(grsgd completion bash)"' >> ~/.bashrc
  zsh:   echo 'eval "$(grsgd completion zsh)"' >> ~/.zshrc     # after compinit
  fish:  grsgd completion fish > ~/.config/fish/completions/grsgd.fish
""",
}
