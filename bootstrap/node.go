package bootstrap

import "strings"

// ServiceNode returns the ID in the format of Istio's servers, type~address~id~domain, also used
// for --service-node.
func (n Node) ServiceNode() string {
	address := ""
	if len(n.IPs) > 0 {
		address = n.IPs[0].String()
	}
	return strings.Join([]string{n.Type, address, n.ID, n.Domain}, "~")
}
