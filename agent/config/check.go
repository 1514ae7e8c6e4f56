package config

import (
	"cmp"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// optional accepts an empty string and applies the checks to any other.
func optional(checks ...check) check {
	return func(value any) *problem {
		if value == "" {
			return nil
		}
		return first(value, checks)
	}
}

// each applies the checks to every item of a list of strings.
func each(checks ...check) check {
	return func(value any) *problem {
		for _, item := range value.([]string) {
			if p := first(item, checks); p != nil {
				return p
			}
		}
		return nil
	}
}

func first(value any, checks []check) *problem {
	for _, c := range checks {
		if p := c(value); p != nil {
			return p
		}
	}
	return nil
}

// text returns a check of strings; allowed describes valid values.
func text(allowed string, ok func(string) bool) check {
	return func(value any) *problem {
		if ok(value.(string)) {
			return nil
		}
		return problemf("write "+allowed, "%s is not valid", brief(value))
	}
}

// oneOf returns a check that accepts only the allowed values.
func oneOf(allowed ...string) check {
	return func(value any) *problem {
		for _, known := range allowed {
			if value == known {
				return nil
			}
		}
		quoted := make([]string, len(allowed))
		for i, known := range allowed {
			quoted[i] = quote(known)
		}
		fix := "the values are " + enumerate(quoted)
		if len(allowed) == 1 {
			fix = "the only value is " + quoted[0]
		}
		if near := nearest(value.(string), allowed); near != "" {
			fix = "did you mean " + quote(near) + "? " + fix
		}
		return problemf(fix, "%s is not valid", brief(value))
	}
}

// between returns a check of an inclusive range.
func between[T int | float64 | time.Duration](low, high T) check {
	return func(value any) *problem {
		if v := value.(T); cmp.Less(v, low) || cmp.Less(high, v) {
			return problemf("write a value from "+render(low)+" to "+render(high),
				"%s is out of range", brief(value))
		}
		return nil
	}
}

// longest is the upper bound of all durations.
const longest = 10 * 365 * 24 * time.Hour

// atLeast returns a check that a duration is not shorter than low or longer than longest.
func atLeast(low time.Duration) check {
	return func(value any) *problem {
		if v := value.(time.Duration); v < low || v > longest {
			return problemf("write "+render(low)+" or longer", "%s is out of range", brief(value))
		}
		return nil
	}
}

// wholeSeconds checks durations that become Envoy flags in seconds.
func wholeSeconds(value any) *problem {
	if v := value.(time.Duration); v%time.Second != 0 {
		return problemf("write "+render(v.Round(time.Second)),
			"Envoy takes whole seconds, and %s is not", brief(value))
	}
	return nil
}

// notEmpty rejects "".
func notEmpty(value any) *problem {
	return text("a text that is not empty", func(s string) bool { return s != "" })(value)
}

// expression checks a regular expression for Envoy (RE2, the syntax of Go).
func expression(value any) *problem {
	if _, err := regexp.Compile(value.(string)); err != nil || value == "" {
		return problemf("write a regular expression (RE2)", "%s is not valid", brief(value))
	}
	return nil
}

// nodeWord checks one of the fields that are joined by ~ in Envoy's --service-node.
func nodeWord(value any) *problem {
	return text("a text without spaces and ~",
		func(s string) bool { return !strings.ContainsAny(s, "~ \t\r\n") })(value)
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// dnsLabel checks the name of a Kubernetes namespace.
func dnsLabel(value any) *problem {
	return text("a DNS label: lower-case letters, digits and -, at most 63",
		label.MatchString)(value)
}

// kubernetesName checks the name of a Kubernetes object: a DNS subdomain.
func kubernetesName(value any) *problem {
	return text("a name: lower-case letters, digits, - and .", func(s string) bool {
		for part := range strings.SplitSeq(s, ".") {
			if !label.MatchString(part) {
				return false
			}
		}
		return len(s) <= 253
	})(value)
}

func domainName(value any) *problem {
	return text(`a domain name, such as "cluster.local"`,
		func(s string) bool { return isHost(s) && !isIP(s) })(value)
}

// localityName checks region, region/zone or region/zone/subzone.
func localityName(value any) *problem {
	return text(`region, region/zone or region/zone/subzone, such as "eu-1/eu-1a"`,
		func(s string) bool {
			parts := strings.Split(s, "/")
			for _, part := range parts {
				if part == "" {
					return false
				}
			}
			return len(parts) <= 3
		})(value)
}

// EnvoyLogLevels returns Envoy's log levels.
func EnvoyLogLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
}

// AgentLogLevels returns the agent's log levels.
func AgentLogLevels() []string { return []string{"debug", "info", "warn", "error"} }

// componentLevels checks component:level,component:level.
func componentLevels(value any) *problem {
	const fix = `write component:level with commas between, such as "misc:error,upstream:debug"`
	for pair := range strings.SplitSeq(value.(string), ",") {
		component, level, ok := strings.Cut(pair, ":")
		if !ok || component == "" ||
			strings.Trim(component, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return problemf(fix, "%s in %s is not component:level", quote(pair), brief(value))
		}
		if p := oneOf(EnvoyLogLevels()...)(level); p != nil {
			p.message = "the level of " + component + ": " + p.message
			return p
		}
	}
	return nil
}

// absolutePath checks a path that Envoy opens: relative ones would depend on Envoy's working
// directory.
func absolutePath(value any) *problem {
	return text("a path that begins with /", filepath.IsAbs)(value)
}

// noNUL rejects NUL bytes in any string: paths, arguments and headers cannot contain them.
func noNUL(value any) *problem {
	list, ok := value.([]string)
	if s, isString := value.(string); isString {
		list, ok = []string{s}, true
	}
	if ok {
		for _, s := range list {
			if strings.ContainsRune(s, 0) {
				return problemf("remove it", "%s contains a NUL character", brief(value))
			}
		}
	}
	return nil
}

// systemdUnit checks the name of a unit.
func systemdUnit(value any) *problem {
	return text(`the name of a systemd unit, such as "myapp.service"`, func(s string) bool {
		name, kind, ok := strings.Cut(s, ".")
		return ok && name != "" && kind != "" && !strings.ContainsAny(s, "/ \t\n")
	})(value)
}

// unitNameMax bounds the length of a unit's name: systemd's UNIT_NAME_MAX less the closing zero.
const unitNameMax = 255

var processUnit = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.(service|scope|slice)$`)

// captureUnit checks the name of a unit that can have processes in a control group of its own.
func captureUnit(value any) *problem {
	return text(`the name of a service, a scope or a slice but -.slice, such as "myapp.service"`,
		func(s string) bool {
			return len(s) <= unitNameMax && processUnit.MatchString(s) && s != "-.slice"
		})(value)
}

// userName checks the name or number of a user.
func userName(value any) *problem {
	return text("the name of a user",
		func(s string) bool { return !strings.ContainsAny(s, ": \t\r\n/") })(value)
}

// timestamp checks a time in RFC 3339.
func timestamp(value any) *problem {
	return text(`a time, such as "2026-01-02T15:04:05Z"`, func(s string) bool {
		_, err := time.Parse(time.RFC3339, s)
		return err == nil
	})(value)
}

// spiffeID checks a SPIFFE ID.
func spiffeID(value any) *problem {
	return text(`a SPIFFE ID, such as "spiffe://cluster.local/ns/ops/sa/admin"`, func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && u.Scheme == "spiffe" && u.Host != ""
	})(value)
}
