#!/bin/sh
# Boots a machine: boot.sh NAME DIR CGROUP ROOT NETWORK [option of systemd-nspawn …]. It runs in mount and process namespaces of its
# own, as their first process, so that nothing it mounts or starts outlives it. The machine's root is ROOT (/: this machine's
# own) under an overlay in memory. NETWORK is the file of its network namespace, or empty: a new one.
set -eu
name=$1 dir=$2 cgroup=$3 lower=$4 network=$5
shift 5

mount --make-rprivate /
mount -t tmpfs -o size=2g,mode=755 machine "$dir"
if [ -n "$network" ]; then
	: >"$dir/network"
	mount --bind "$network" "$dir/network" # the next /proc has other processes
	set -- --network-namespace-path="$dir/network" --capability=CAP_NET_ADMIN "$@"
else
	set -- --private-network "$@"
fi
mount -t proc proc /proc
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$dir/upper,workdir=$dir/work" machine "$dir/root"
etc=$dir/root/etc

# Nothing that an Outrider of this machine has, and no file of its users: a test finds only what it made itself.
find "$dir/root/etc" "$dir/root/usr" "$dir/root/var" -xdev -maxdepth 5 -iname '*outrider*' -prune -exec rm -rf {} +
# With it, each installation of a package takes two seconds of CPU time for the index of manual pages.
rm -f "$dir/root/var/lib/man-db/auto-update"
find "$dir/root/var/tmp" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
for file in "$etc/passwd" "$etc/group" "$etc/shadow" "$etc/gshadow"; do
	if grep -qs '^outrider' "$file"; then sed -i '/^outrider/d' "$file"; fi
done
status=$dir/root/var/lib/dpkg/status
if grep -qs '^Package: outrider' "$status"; then
	awk -v RS= -v ORS='\n\n' '!/^Package: outrider/' "$status" >"$status.new"
	cat "$status.new" >"$status"
	rm "$status.new"
fi

# None of what this machine would start, mount or be.
rm -rf "$etc"/systemd/system/*.wants "$etc"/systemd/system/*.requires
: >"$etc/fstab"
tr -d - </proc/sys/kernel/random/uuid >"$etc/machine-id"
echo "$name" >"$etc/hostname"
rm -f "$dir/root/usr/sbin/policy-rc.d" # keeps packages from starting services
ln -sf /lib/systemd/system/multi-user.target "$etc/systemd/system/default.target"
for unit in getty.target console-getty.service systemd-networkd.service systemd-networkd.socket systemd-resolved.service \
	systemd-timesyncd.service systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer \
	dpkg-db-backup.timer man-db.timer e2scrub_all.timer fstrim.timer; do
	ln -sf /dev/null "$etc/systemd/system/$unit"
done

# A control group of its own: two machines in one would clash.
mkdir "$cgroup"
echo 0 >"$cgroup/cgroup.procs"

export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_LOCK=0
# The container's own filter of system calls is narrower than a machine's: the keeper needs pidfd_getfd.
# It is started again when it reboots, which it tells by 133.
while :; do
	status=0
	systemd-nspawn -q --system-call-filter=pidfd_getfd -D "$dir/root" -M "$name" --boot --register=no --keep-unit --console=pipe \
		--notify-ready=yes --link-journal=no "$@" || status=$?
	[ "$status" = 133 ] || exit "$status"
done
