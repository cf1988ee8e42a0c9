# data_test.sh - lockstep data: good and bad paths, on made-up data and with a made-up curl.
. "$(dirname "$0")/expect.sh"

small="--made-up 100 --height 8 --width 8 --classes 4"

# Words and help.
expect 64 'a subcommand is missing' data
expect 64 'did you mean "shard"' data shrad
expect 0 'lockstep data unpack FILE.gz OUT' data --help
for subcommand in fetch unpack shard verify; do
    expect 0 "^lockstep data $subcommand " data $subcommand --help
done

# Sharding, and verifying what came of it: same data hash, however it is spread.
expect 0 '100 examples in 3 shards' data shard $small --shards 3 --to three
expect 64 'found a manifest' data shard $small --shards 3 --to three
expect 0 '100 examples in 7 shards' data shard --manifest three/manifest.json --shards 7 --to seven
for source in "$small" "--manifest three/manifest.json" "--manifest seven/manifest.json"; do
    expect 0 '^image \[8, 8, 1\]$' data verify $source
    grep '^data_sha256 ' out >>hashes
    grep '^class_counts ' out >>classes
done
require "three equal data hashes" [ "$(sort -u hashes | wc -l)" -eq 1 ]
require "three equal class counts" [ "$(sort -u classes | wc -l)" -eq 1 ]
require "class counts add up to 100" \
    [ "$(sort -u classes | awk '{s = 0; for (i = 2; i <= NF; i++) s += $i; print s}')" -eq 100 ]
expect 0 '^examples 34 in 1 part' data verify --images three/images-00000.idx \
    --labels three/labels-00000.idx
expect 0 '^classes 4' data verify $small --seed 2
require "another seed is other data" [ "$(grep -c "$(grep '^data_sha256' out)" hashes)" -eq 0 ]

# MNIST's naming, plain and packed; unpacking.
mkdir named
cp three/images-00000.idx named/train-images-idx3-ubyte
gzip -c three/labels-00000.idx >named/train-labels-idx1-ubyte.gz
expect 0 '^examples 34' data verify --directory named
expect 66 't10k-images-idx3-ubyte: neither' data verify --directory named --part test
expect 64 'wanted train or test' data verify --directory named --part both
expect 0 '^[0-9a-f]\{64\}  labels$' data unpack named/train-labels-idx1-ubyte.gz labels
require "unpacked bytes are the packed ones" cmp labels three/labels-00000.idx
expect 64 'there already' data unpack named/train-labels-idx1-ubyte.gz labels
expect 66 '' data unpack missing.gz other
expect 65 'wanted a whole gzip file' data unpack three/labels-00000.idx other
require "a failed unpacking leaves nothing" [ ! -e other ]

# Command lines that mean nothing.
expect 64 'found 0 sources' data verify
expect 64 'found 2 sources' data verify $small --manifest three/manifest.json
expect 64 'labels is missing' data verify --images three/images-00000.idx
expect 64 'seed goes with --made-up' data verify --manifest three/manifest.json --seed 3
expect 64 'part goes with --directory' data verify $small --part test
expect 64 'did you mean "--height"' data verify --heigth 8
expect 64 'a value is missing' data verify --made-up
expect 64 '^lockstep: --directory: found "", wanted a value' data verify --directory ''
expect 64 '^lockstep: --to: found ""' data shard $small --shards 3 --to ''
expect 64 'found "10x"' data verify --made-up 10x
expect 64 'found "-1"' data verify --made-up -1
expect 64 'found 1 arguments, wanted 0' data verify $small word
expect 64 'wanted 0; usage: lockstep data verify (--directory DIR | ' data verify three
expect 64 'wanted 0; usage: .* --shards N --to DIR$' data shard three --shards 3 --to nowhere
expect 64 'shards N is missing' data shard $small --to nowhere
expect 64 'to DIR is missing' data shard $small --shards 3
expect 64 '' data shard $small --shards 101 --to nowhere

# Damage.
expect 65 'label' data verify --images three/images-00000.idx --labels three/labels-00000.idx \
    --classes 2
expect 65 'labels-00000.idx' data verify --images three/labels-00000.idx \
    --labels three/labels-00000.idx
flip_byte seven/images-00003.idx 100
expect 65 'images-00003.idx' data verify --manifest seven/manifest.json
expect 66 '' data verify --manifest nowhere/manifest.json

# Fetching, with a curl of our own: unreachable, wrong bytes, not there at all.
expect 64 'did you mean "mnist"' data fetch mnst
expect 64 'found 0 arguments, wanted 1' data fetch
mkdir bin
printf '#!/bin/sh\necho "curl: (6) Could not resolve host: nowhere" >&2\nexit 6\n' >bin/curl
chmod +x bin/curl
usual_path=$PATH
PATH="$work/bin:$usual_path"
expect 69 'Could not resolve host' data fetch mnist --to fetched
require "nothing was left" [ -z "$(ls -A fetched)" ]
printf '#!/bin/sh\necho not a gzip file\n' >bin/curl
expect 65 'no gzip header' data fetch mnist --to fetched
printf '#!/bin/sh\necho other images | gzip -c\n' >bin/curl
expect 65 'wanted ba891046' data fetch mnist --to fetched
require "nothing wrong got a name" [ -z "$(ls -A fetched)" ]
expect 65 '' data fetch mnist
require "without --to it goes to the cache" [ -d cache/lockstep/data/mnist ]
PATH="$work/nowhere"
expect_output=$("$program" data fetch mnist --to fetched 2>&1)
code=$?
PATH=$usual_path
require "no curl: exit code 69" [ "$code" -eq 69 ]
require "no curl: it is named" [ "${expect_output#*curl cannot be started}" != "$expect_output" ]

# Where the real sets are on this machine, they are right; where not, it is said what to do.
if [ -d /usr/share/datasets/fashion-mnist ]; then
    expect 0 'all four files in /usr/share/datasets/fashion-mnist are right' \
        data fetch fashion-mnist
else
    expect 69 'dataset-fashion-mnist' data fetch fashion-mnist
fi
finish
