package validate

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9a-zA-Z]+$")

const longestHost = 255

// whyNoHost returns why a host name is invalid, "" if it is valid. If wildcard is set, the first
// label may be * or *-text.
func whyNoHost(host string, wildcard bool) string {
	switch {
	case host == "":
		return "is empty"
	case len(host) > longestHost:
		return fmt.Sprintf("is longer than %d characters", longestHost)
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	for i, label := range labels {
		if i == 0 && wildcard && isWildcardLabel(label) {
			continue
		}
		if !isDNSLabel(label) {
			if strings.Contains(label, "*") {
				return fmt.Sprintf("%q: only a whole first label may be *", host)
			}
			return fmt.Sprintf("%q is no host name: label %q", host, label)
		}
	}
	if top := labels[len(labels)-1]; (len(labels) > 1 || !wildcard) &&
		strings.Trim(top, "0123456789") == "" {
		return fmt.Sprintf("%q is no host name: its last label is a number", host)
	}
	return ""
}

func (c *checker) host(field, host string, wildcard bool) {
	if why := whyNoHost(host, wildcard); why != "" {
		c.fail(field, why, "write a host such as api.example.com")
	}
}

// fullHost checks that a host of a Gateway or Sidecar has a domain, and that a wildcard is its
// whole first label. It reports whether the host is valid.
func (c *checker) fullHost(field, host string) bool {
	switch {
	case host == "*":
	case strings.HasPrefix(host, "*") && !strings.HasPrefix(host, "*."):
		c.fail(field, fmt.Sprintf("%q: only a whole first label may be *", host),
			"write a host such as *.example.com")
		return false
	case host != "" && !strings.Contains(host, "."):
		c.fail(field, fmt.Sprintf("%q is a short name", host),
			"write it with its domain, for example "+host+".example.com")
		return false
	}
	return true
}

// hostOrAddress checks a host, wildcard or IP address.
func (c *checker) hostOrAddress(field, host string) {
	if _, err := netip.ParseAddr(host); err != nil {
		c.host(field, host, true)
	}
}

func (c *checker) labels(field string, labels map[string]string) {
	for key, value := range labels {
		if !isLabelKey(key) {
			c.fail(field, fmt.Sprintf("%q is no label", key),
				"write letters, digits and -_. between letters or digits")
		}
		if value != "" && !isLabelValue(value) {
			c.fail(fmt.Sprintf("%s[%q]", field, key), fmt.Sprintf("%q is no label's value", value),
				"write up to 63 letters, digits and -_. between letters or digits")
		}
	}
}

func (c *checker) exportTo(exportTo []string) { c.seenBy(exportTo, false) }

// seenBy checks the namespaces in exportTo. hides permits ~, which means no namespace.
func (c *checker) seenBy(exportTo []string, hides bool) {
	const fix = "write . for its own namespace, * for all, or a namespace"
	seen := map[string]bool{}
	for i, to := range exportTo {
		field := fmt.Sprintf("exportTo[%d]", i)
		own := to
		if to == "." {
			own = c.namespace
		}
		switch {
		case seen[own]:
			c.fail(field, fmt.Sprintf("%q is given twice", to), "remove one")
		case (to == "*" || to == "~") && len(exportTo) > 1:
			c.fail(field, to+" leaves nothing for others to say", "remove all others, or "+to)
		case to == "*", to == ".", to == "~" && hides, isDNSLabel(to):
		case to == "~":
			c.fail(field, "~ hides the object from everyone", fix)
		default:
			c.fail(field, fmt.Sprintf("%q is no namespace", to), fix)
		}
		seen[own] = true
	}
}

func (c *checker) header(field, name string) {
	if !headerName.MatchString(name) {
		c.fail(field, fmt.Sprintf("%q is no header's name", name), "write letters, digits and -")
	}
}

// oneLine checks a text that Envoy writes into the head of a request or response: it must have no
// line breaks.
func (c *checker) oneLine(field, text string) {
	if strings.ContainsAny(text, "\x00\r\n") {
		c.fail(field, "has a line break or a NUL, which Envoy refuses", "write it on one line")
	}
}
