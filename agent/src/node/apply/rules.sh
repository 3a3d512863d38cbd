# Takes the chains that kube-proxy, the kubelet and network plug-ins have left out of the host's packet filter: first the rules that lead
# into them from chains of others, then the chains. All else stays. One transaction for each table, so that no half of it counts.
#
# Runs in the root of the slot that has stopped, whose tools have made them, on the host's network. Both back ends are asked: kube-proxy's own
# image may have taken the other one. A back end that was never used has no tables, and is not woken.
set -u
own='^(KUBE|CNI|FLANNEL|CILIUM|cali)[-_]'
status=0
for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
	command -v "$tool-save" > /dev/null || continue
	saved=$("$tool-save") || { status=1; continue; }
	printf '%s\n' "$saved" | grep -Eq "^:${own#^}" || continue
	printf '%s\n' "$saved" | awk -v own="$own" '
		/^\*/ { print; chains = "" }
		/^:/ {
			name = substr($1, 2)
			# Named so, a chain is emptied.
			if (name ~ own) { print ":" name " - [0:0]"; chains = chains "-X " name "\n" }
		}
		/^-A / && $2 !~ own {
			for (i = 3; i < NF; i++) if (($i == "-j" || $i == "-g") && $(i + 1) ~ own) { sub(/^-A/, "-D"); print; break }
		}
		/^COMMIT/ { printf "%s", chains; print }
	' | "$tool-restore" --noflush || status=1
done
if command -v nft > /dev/null; then
	for family in ip ip6; do
		nft list table "$family" kube-proxy > /dev/null 2>&1 || continue
		nft delete table "$family" kube-proxy || status=1
	done
fi
exit $status
