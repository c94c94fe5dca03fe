"""Texts with explanations and examples, which the help of each command shows below the options."""

KEYS = "`grsgd config` lists all keys of a configuration, and `grsgd algorithms NAME` the keys of an algorithm."

TOP = """\
examples:
  grsgd demo
  grsgd train experiments/demo/dpsgd.toml --check --ranks 4
  grsgd run -n 4 experiments/demo/dpsgd.toml --set train.epochs=5 --out mine.h5
  grsgd simulate experiments/demo/dpsgd.toml --ranks 64 --network 1gbit,50us --timing-only
  grsgd report mine.h5

Lists: grsgd config (keys of a configuration), grsgd algorithms, grsgd models, grsgd data list.
"""

COMMANDS = {
    "demo": """\
Trains ring_allreduce, dpsgd and grsgd, one after the other; prints the table and the path of the plot at the end.

  grsgd demo --out results
  grsgd demo --copy experiments/demo
  grsgd run -n 4 experiments/demo/grsgd.toml --set optimizer.lr=0.02
""",
    "sweep": f"""\
Each combination of values is a run. A run is not repeated if its file exists, with the same configuration, ranks,
options, networks and own code. So the same command continues an interrupted sweep. At the end a table shows the mean of
each combination over its seeds, with its 95 % interval, and a plot is drawn. Runs that are made at a time with --jobs
take longer than a run alone.

  grsgd sweep -n 4 --vary seed=0,1,2 --vary optimizer.lr=0.05,0.1 --out sweep experiments/demo/dpsgd.toml
  grsgd sweep -n 16 --vary seed=0,1,2 --simulate experiments/demo/dpsgd.toml --network 1gbit,50us

{KEYS}
""",
    "train": f"""\
All ranks read the configuration and train with the algorithm; rank 0 writes one run file for all ranks.

  mpiexec -n 4 grsgd train experiments/demo/dpsgd.toml --set optimizer.lr=0.02 --out mine.h5
  grsgd train experiments/demo/dpsgd.toml --check --ranks 4

{KEYS}
""",
    "run": f"""\
Starts a configuration or your script on several ranks, by mpiexec or srun with the settings for this machine.

  grsgd run -n 4 experiments/demo/dpsgd.toml --set train.epochs=5
  grsgd run -n 4 experiments/demo/own_loop.py

{KEYS}
""",
    "simulate": f"""\
All ranks train in one process, and the times of messages are computed. So the run shows the speed on another machine.

  grsgd simulate experiments/demo/grsgd.toml --ranks 16 --network 1gbit,50us --out simulated.h5
  grsgd simulate experiments/demo/grsgd.toml --ranks 32 --network 25gbit,10us --topology hosts:8x4 --timing-only

{KEYS}
""",
    "replay": """\
An operation of a rank begins after the operations on which it depends; the file says on which. Messages share the
bandwidth of the network.

  grsgd simulate experiments/demo/grsgd.toml --ranks 16 --network 1gbit,50us --trace run.goal
  grsgd replay run.goal --network 100mbit,1ms
""",
    "evaluate": """\
Give a run file, in which the path of the saved model is recorded; or give a model and the model's configuration.

  grsgd train experiments/demo/dpsgd.toml --out mine.h5 --save mine.pt
  grsgd evaluate mine.h5
  grsgd evaluate mine.pt experiments/demo/dpsgd.toml --set data.only_test=100
""",
    "calibrate": """\
Writes a network file with the latency, bandwidth and computing times of this machine or cluster, for simulated runs.

  mpiexec -n 2 grsgd calibrate experiments/demo/dpsgd.toml --out network.toml
  grsgd simulate experiments/demo/dpsgd.toml --network network.toml
""",
    "report": """\
Prints a table with a row per run; for a single run also a table with a row per rank.

  grsgd report results/*.h5
""",
    "plot": """\
Draws all runs in one figure, each run in its own colour.

  grsgd plot results/*.h5 -o runs.png
""",
    "config": """\
Write a key into the configuration file, or give it to a command as --set KEY=VALUE.

  grsgd config
  grsgd config train schedule.name
""",
    "algorithms": """\
Prints a table if no name is given. An algorithm's options are the further keys of [algorithm] in a configuration.

  grsgd algorithms
  grsgd algorithms grsgd mine.py:MyAlgorithm
""",
    "models": """\
Prints a table if no name is given. A model's options are the further keys of [model] in a configuration.

  grsgd models mlp
""",
    "data": """\
Some data sets are part of Python packages; other data sets are downloaded once, and checked by their digest.

  grsgd data list
  grsgd data fetch mnist cifar-10 --data-dir data
""",
    "coding-cost": """\
The unit is the model's size in bytes. The bytes of a multicast are counted in two ways: once, and once per receiver.

  grsgd coding-cost --ranks 10
""",
    "topology": """\
"sends to" is the largest number of ranks to which a rank sends in a step. "graphs" is the number of graphs, which are
used in turn. "steps" is the number of mixing steps until 1 % of the differences between models is left, or only
rounding errors.

  grsgd topology --ranks 16
  grsgd topology ring base-2 mine.txt --ranks 8
""",
    "bound": """\
Prints the least time in which the workers can compute the B gradients of one update: the smallest t with
sum floor(t / h_i) >= B, if a step of worker i takes h_i seconds. Reports of runs with a server have this time, too.

  grsgd bound experiments/demo/parameter_server.toml --ranks 5 --compute constant:0.1 --set algorithm.strategy=rennala
  grsgd bound experiments/demo/parameter_server.toml --step-seconds 0.1,0.1,0.1,1.0 --gradients 6
""",
    "doctor": """\
Prints text for an issue, or with --json an object for programs, within 30 seconds. The exit code is 1 if a finding
hurts; its line begins with "!", and its remedy is at the end.

  grsgd doctor
  grsgd run -n 4 -m grsgd doctor
  srun --mpi=pmix grsgd doctor --output $SCRATCH
""",
    "completion": """\
With the script, the Tab key completes commands, options, file names, and names of algorithms.

  bash:  echo 'eval "$(grsgd completion bash)"' >> ~/.bashrc
  zsh:   echo 'eval "$(grsgd completion zsh)"' >> ~/.zshrc     # after compinit
  fish:  grsgd completion fish > ~/.config/fish/completions/grsgd.fish
""",
}
