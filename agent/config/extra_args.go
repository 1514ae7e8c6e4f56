package config

import (
	"slices"
	"strings"
)

// extraArguments reports the flags in extra_args that the agent sets itself, that would redirect
// Envoy's log or disable hot restart, or with which Envoy would not serve.
func extraArguments(value any) *problem {
	var found, fixes []string
	for _, argument := range value.([]string) {
		r := refused(argument)
		if r == nil {
			continue
		}
		found = append(found, quote(argument)+" is not allowed: "+r.why)
		if fix := quote(argument) + ": " + r.fix; !slices.Contains(fixes, fix) {
			fixes = append(fixes, fix)
		}
	}
	switch len(found) {
	case 0:
		return nil
	case 1:
		_, fix, _ := strings.Cut(fixes[0], ": ")
		return problemf(fix, "%s", found[0])
	default:
		return problemf(strings.Join(fixes, ", "), "%s", strings.Join(found, ", "))
	}
}

// refused returns the rule that forbids an argument, or nil.
func refused(argument string) *refusedFlag {
	flag, _, _ := strings.Cut(argument, "=")
	for _, r := range refusedFlags() {
		// Envoy also accepts one-letter flags with an attached value (-lwarn).
		short := slices.ContainsFunc(r.names, func(name string) bool {
			return len(name) == 2 && name != "--" && strings.HasPrefix(flag, name)
		})
		if short || slices.Contains(r.names, flag) {
			return &r
		}
	}
	return nil
}

// refusedFlag is a group of flags that extra_args must not contain.
type refusedFlag struct {
	names    []string
	why, fix string
}

func refusedFlags() []refusedFlag {
	const passed = "the agent passes it"
	set := func(key string, names ...string) refusedFlag {
		return refusedFlag{names, passed, "set " + key}
	}
	own := func(why string, names ...string) refusedFlag {
		return refusedFlag{names, why, "remove it"}
	}
	return []refusedFlag{
		set("envoy.custom_config_file", "-c", "--config-path"),
		set("envoy.bootstrap_override", "--config-yaml"),
		set("envoy.base_id", "--base-id", "--use-dynamic-base-id", "--base-id-path"),
		set("envoy.drain_duration", "--drain-time-s"),
		set("envoy.parent_shutdown_duration", "--parent-shutdown-time-s"),
		set("envoy.concurrency", "--concurrency"),
		set("envoy.log_level", "-l", "--log-level"),
		set("envoy.component_log_level", "--component-log-level"),
		set("envoy.stat_name_length", "--max-obj-name-len"),
		set("node.id, node.ip and node.type", "--service-node"),
		set("node.service_cluster", "--service-cluster"),
		set("node.locality", "--service-zone"),
		set("node.ip", "--local-address-ip-version"),
		own("the agent decides how old epochs are drained", "--drain-strategy"),
		own("the agent numbers the epochs", "--restart-epoch"),
		own("the agent controls hot restart", "--socket-path", "--socket-mode",
			"--disable-hot-restart",
			"--skip-hot-restart-parent-stats", "--skip-hot-restart-on-no-parent"),
		own("the agent reads Envoy's log in its own format", "--log-format",
			"--log-format-escaped"),
		own("the agent reads Envoy's log from its standard error", "--log-path"),
		own("each epoch's admin interface is on a socket the agent knows", "--admin-address-path"),
		own("Envoy would exit instead of serving", "--mode", "--version", "--hot-restart-version",
			"-h", "--help"),
		own("it would hide the arguments after it", "--", "--ignore_rest"),
	}
}
