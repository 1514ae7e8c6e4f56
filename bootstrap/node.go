package bootstrap

import "strings"

// ServiceNode is the node's ID as Istio's servers read it: type~address~id~domain. It is --service-node too.
func (n Node) ServiceNode() string {
	address := ""
	if len(n.IPs) > 0 {
		address = n.IPs[0].String()
	}
	return strings.Join([]string{n.Type, address, n.ID, n.Domain}, "~")
}
