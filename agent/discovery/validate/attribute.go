package validate

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/discovery/rbac"
)

// anyValue accepts every value of an attribute.
func anyValue(*checker, string, string) {}

func (c *checker) addressBlock(field, text string) {
	_, err := netip.ParsePrefix(text)
	if !strings.Contains(text, "/") {
		_, err = netip.ParseAddr(text)
	}
	if err != nil {
		c.fail(field, fmt.Sprintf("%q is no IP address or CIDR block", text),
			"write an address such as 10.0.0.1, or a block such as 10.0.0.0/8")
	}
}

func (c *checker) portText(field, text string) {
	if _, err := strconv.ParseUint(text, 10, 16); err != nil {
		c.fail(field, fmt.Sprintf("%q is not a valid port", text), "write a number up to 65535")
	}
}

func (c *checker) serviceAccount(field, text string) {
	namespace, account, qualified := strings.Cut(text, "/")
	if !qualified {
		namespace, account = "any", text
	}
	c.longest(field, text, longestServiceAccounts)
	if namespace == "" || account == "" || strings.ContainsAny(account, "/") ||
		strings.Contains(text, "*") {
		c.fail(field, fmt.Sprintf("%q is no service account", text),
			"write ACCOUNT or NAMESPACE/ACCOUNT, without *")
	}
}

func (c *checker) oneWildcard(field, text string) {
	if inner := strings.TrimSuffix(strings.TrimPrefix(text, "*"), "*"); strings.Contains(inner,
		"*") || len(text)-len(inner) > 1 {
		c.fail(field, fmt.Sprintf("%q: one * is possible, at the beginning or the end", text), "")
	}
}

func (c *checker) sourceTrustDomain(field, text string) {
	c.oneWildcard(field, text)
	if strings.Contains(text, "/") {
		c.fail(field, fmt.Sprintf("%q is no trust domain", text), "remove what follows /")
	}
}

// segment matches a valid segment of an Envoy path template.
var segment = regexp.MustCompile(`^[-a-zA-Z0-9._~%!$&'()+,;:@=]+$`)

const longestTemplate = 256 // Envoy's limit for the length of a path template, in bytes

// pathTemplate checks a path that may contain wildcards: {*} is one segment, {**} any number of
// segments. Envoy 1.40 crashes on a template that does not begin with a slash or has an empty
// segment.
func (c *checker) pathTemplate(field, text string) {
	if !rbac.IsPathTemplate(text) && !strings.ContainsAny(text, "{}") {
		return
	}
	const fix = "write {*} for one segment, {**} for any number of segments, once and after all {*}"
	c.longest(field, text, longestTemplate)
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		c.fail(field, fmt.Sprintf("%q is no path template: it begins without /", text), fix)
		return
	}
	last := false
	for _, part := range strings.Split(strings.TrimSuffix(rest, "/"), "/") {
		switch {
		case (part == "{*}" || part == "{**}") && last:
			c.fail(field, fmt.Sprintf("%q: nothing but text can follow {**}", text), fix)
			return
		case part == "{**}":
			last = true
		case part == "{*}":
		case !segment.MatchString(part):
			c.fail(field, fmt.Sprintf("%q is no path template: segment %q", text, part), fix)
			return
		}
	}
}
