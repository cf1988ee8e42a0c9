#!/bin/sh
# packages_test.sh PACKAGES WORK_DIR - toolchain/packages on machines that lack something: without
# root, sudo or a network. What it would call is played by scripts that write down their calls.
set -eu
packages=$1 work=$2
rm -rf "$work"
mkdir -p "$work/bin"
for tool in sh env grep cat; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done

plays() {  # NAME: what it does is read from standard input
    { echo '#!/bin/sh'; cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
# expect CODE TEXT ARGUMENT..: runs it with nothing but the players.
expect() {
    wanted=$1 text=$2 code=0
    shift 2
    : >"$work/calls"
    PATH="$work/bin" WORK="$work" "$packages" "$@" >"$work/out" 2>&1 || code=$?
    if [ "$code" != "$wanted" ] || ! grep -q "$text" "$work/out" "$work/calls"; then
        echo "packages $*: found exit code $code and"
        cat "$work/out" "$work/calls"
        echo "wanted $wanted and \"$text\""
        exit 1
    fi
}

plays id <<'END'
echo "${USER_ID:-1000}"
END
expect 69 "there is no dpkg-query here" build
plays dpkg-query <<'END'
[ "$4" != cmake ] && echo "install ok installed"
END
expect 64 "usage: toolchain/packages" nothing
expect 69 "root or sudo is needed for: cmake$" build

plays apt-get <<END
echo "apt-get by \${BY_SUDO:-nobody}, front end \${DEBIAN_FRONTEND:-none}: \$*" >>"$work/calls"
case "\$*" in
*install*) [ -e "$work/lists" ] ;;
*) [ -e "$work/network" ] && : >"$work/lists" ;;
esac
END
plays sudo <<END
exec env -i PATH="$work/bin" BY_SUDO=sudo "\$@"
END
expect 69 "apt-get could not install: cmake;" build
: >"$work/network"
expect 0 "apt-get by sudo, front end noninteractive: .* install -y .* cmake$" build
expect 0 "installing: cmake" test
export USER_ID=0
expect 0 "apt-get by nobody, front end noninteractive: .* install -y .* cmake$" build
plays dpkg-query <<'END'
echo "install ok installed"
END
: >"$work/calls"
PATH="$work/bin" "$packages" cross >"$work/out" 2>&1
if [ -s "$work/out" ] || [ -s "$work/calls" ]; then echo "not silent with all there"; exit 1; fi
echo "packages: says what it lacks, and installs it where it can"
