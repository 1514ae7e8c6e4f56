package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) headers(field string, h *networking.Headers) {
	for kind, operations := range map[string]*networking.Headers_HeaderOperations{
		"request": h.GetRequest(), "response": h.GetResponse()} {
		for name, headers := range map[string]map[string]string{"set": operations.GetSet(),
			"add": operations.GetAdd()} {
			for _, header := range slices.Sorted(maps.Keys(headers)) {
				path := fmt.Sprintf("%s.%s.%s[%q]", field, kind, name, header)
				c.changedHeader(path, header, kind == "request")
				if why, fix := headerValue(headers[header]); why != "" {
					c.fail(path, why, fix)
				}
			}
		}
		for i, header := range operations.GetRemove() {
			c.changedHeader(fmt.Sprintf("%s.%s.remove[%d]", field, kind, i), header, false)
		}
	}
}

// changedHeader checks the name of a header that a route changes. Pseudo headers and the host must
// not be changed, except the host of requests if host is set.
func (c *checker) changedHeader(field, name string, host bool) {
	switch {
	case host && isAuthority(name):
	case strings.EqualFold(name, "host"), strings.HasPrefix(name, ":"):
		c.fail(field, fmt.Sprintf("%s cannot be changed here", name),
			"set the host with rewrite.authority")
	case name == "":
		c.fail(field, "a header without a name", "write its name")
	case strings.ContainsAny(name, "\x00\r\n"):
		c.fail(field, fmt.Sprintf("%q is no header's name", name), "write letters, digits and -")
	case !headerName.MatchString(name):
		c.warn(field, fmt.Sprintf("%q is no header's name: others may refuse what is sent", name),
			"write letters, digits and -")
	}
}

func isAuthority(name string) bool {
	return strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority")
}

// oneAuthority reports an error if a route sets the host of a request in several ways.
func (c *checker) oneAuthority(field string, r *networking.HTTPRoute) {
	ways := 0
	if r.GetRewrite().GetAuthority() != "" {
		ways++
	}
	for _, headers := range []map[string]string{r.GetHeaders().GetRequest().GetSet(),
		r.GetHeaders().GetRequest().GetAdd()} {
		for name := range headers {
			if isAuthority(name) {
				ways++
			}
		}
	}
	if ways > 1 {
		c.fail(field, "the host is set more than once", "set it with rewrite.authority alone")
	}
}
