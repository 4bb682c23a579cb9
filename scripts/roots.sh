# shellcheck shell=bash
# What scripts/matrix and scripts/package share: bare Debian systems in $WORK, to
# build and test in. Sourced after lib.sh; wants root, and a host with apt.
#
# A command in such a root has mounts, processes and shared memory of its own:
# when it ends, or this script is killed, all of that is gone, and nothing is
# mounted where a removal of the folder could reach it.

prepare_roots() {
	[ "$EUID" = 0 ] || die 'only root can build bare Debian systems'
	need mmdebstrap mmdebstrap
	need debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg
	need util-linux unshare
	install_missing
}

# Where this machine gets Debian's packages.
debian_mirror() {
	apt-get indextargets --format "\$(REPO_URI)" 2>/dev/null | grep -m 1 '/debian/*$' || echo http://deb.debian.org/debian
}

# Whom this machine trusts.
TRUSTED=/etc/ssl/certs/ca-certificates.crt

# Where systems stay, and are used again with what was installed in them; else they are new and go.
ROOTS=

# make_root SUITE [NAME]: a minimal system, which $ROOT_DIR then names. It is called NAME if
# no other row may get what will be in it. This machine's way to the mirror (a proxy, what it
# thinks of dates) is also the root's, and so is whom it trusts: the proxy may show a certificate
# of its own to npm, too. Nobody minds losing the system when the machine crashes, so dpkg
# needn't wait for the disk.
make_root() {
	ROOT_DIR=${ROOTS:-$WORK/roots}/${2:-$1}
	if [ ! -e "$ROOT_DIR/etc/debian_version" ]; then
		mkdir -p "$ROOT_DIR"
		apt-config dump | grep -E '^Acquire::(https?|Check-)[^ ]* "..*' >"$WORK/apt-acquire.conf" || true
		quietly mmdebstrap --quiet --variant=minbase --components=main \
			--dpkgopt=force-unsafe-io --aptopt="$WORK/apt-acquire.conf" --aptopt='Acquire::Languages "none"' \
			"$1" "$ROOT_DIR" "$(debian_mirror)" || return
		cp /etc/resolv.conf "$ROOT_DIR/etc/resolv.conf"
	fi
	[ ! -e "$TRUSTED" ] || cp "$TRUSTED" "$ROOT_DIR/etc/trusted-here.crt"
}

# in_root COMMAND...: as root in $ROOT_DIR, with a clean environment and the variables in IN_ROOT_ENV.
IN_ROOT_ENV=()
in_root() {
	# shellcheck disable=SC2016
	run_child unshare --mount --propagation private --pid --fork --kill-child --ipc -- sh -euc '
		root=$1
		shift
		mount -t proc proc "$root/proc"
		mount --rbind /sys "$root/sys"
		mount --rbind /dev "$root/dev"
		mount -t tmpfs tmpfs "$root/dev/shm"
		exec chroot "$root" "$@"' sh "$ROOT_DIR" \
		env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive NODE_EXTRA_CA_CERTS=/etc/trusted-here.crt "${IN_ROOT_ENV[@]}" "$@"
}

# The checkout as it is, without what was built in it, to /outbox of the root.
copy_checkout_to_root() {
	rm -rf "$WORK/src" "$ROOT_DIR/outbox"
	copy_checkout
	mv "$WORK/src" "$ROOT_DIR/outbox"
}

remove_root() {
	[ -n "$ROOTS" ] || [ "$KEEP" = 1 ] || rm -rf --one-file-system "$ROOT_DIR"
}
