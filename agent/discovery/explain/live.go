package explain

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"outrider.org/outrider/agent/resource"
)

// ClusterStats has statistics of a cluster in a running Envoy since its start.
type ClusterStats struct {
	Endpoints  uint64 // current number of the cluster's endpoints
	Resolved   bool   // the DNS names were looked up at least once, successfully or not
	Handshakes uint64 // number of successful TLS handshakes
	// number of failed handshakes because no trusted CA signed the server's certificate
	UntrustedCertificates uint64
	// number of failed handshakes because the certificate has another name
	NameMismatches uint64
	// number of handshakes that failed for other reasons: no TLS, or no common parameters
	OtherTLSFailures uint64
}

// Finding is a problem of a cluster that a running Envoy's statistics show.
type Finding struct {
	Message, Fix      string
	InDestinationRule bool // the fix is in the DestinationRule, not in the ServiceEntry
}

// checkEndpoints returns the finding for a cluster whose DNS names have no address; nil if they
// have one.
func (l ClusterStats) checkEndpoints(c *clusterv3.Cluster) *Finding {
	name := ""
	for _, locality := range c.GetLoadAssignment().GetEndpoints() {
		for _, ep := range locality.LbEndpoints {
			name = ep.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
		}
	}
	if name == "" || l.Endpoints > 0 || !l.Resolved {
		return nil
	}
	return &Finding{Message: fmt.Sprintf("%s does not resolve: cluster %s has no endpoint",
		name, c.Name),
		Fix: fmt.Sprintf("correct the name, or the DNS of this host: getent hosts %s", name)}
}

// checkTLS returns the finding for a cluster whose TLS handshakes have failed without any success;
// nil for any other cluster.
func (l ClusterStats) checkTLS(c *clusterv3.Cluster) *Finding {
	found := &Finding{InDestinationRule: true}
	var why string
	switch {
	case l.Handshakes > 0:
		return nil
	case l.UntrustedCertificates > 0:
		why = "its certificate is not trusted (ssl.fail_verify_error)"
		found.Fix = "set caCertificates to the file of its authority, or install that on this host"
	case l.NameMismatches > 0:
		why = "its certificate is for another name (ssl.fail_verify_san)"
		found.Fix = "correct subjectAltNames"
	case l.OtherTLSFailures > 0:
		why = "TLS fails (ssl.connection_error)"
		found.Fix = "look whether the port speaks TLS"
	default:
		return nil
	}
	found.Message = fmt.Sprintf(
		"no TLS connection to cluster %s has succeeded since Envoy started: %s",
		c.Name, why)
	return found
}

// Findings returns the findings of all clusters, by the cluster's resource.
func Findings(resources *resource.Snapshot,
	live map[string]ClusterStats) map[*resource.Resource][]Finding {
	found := map[*resource.Resource][]Finding{}
	for name, r := range resources.ByType(resource.ClusterType) {
		counted, known := live[name]
		if !known || counted.Endpoints > 0 &&
			counted.UntrustedCertificates+counted.NameMismatches+counted.OtherTLSFailures == 0 {
			continue
		}
		c, err := decode(r, &clusterv3.Cluster{})
		if err != nil {
			continue // never happens: this program encoded the cluster
		}
		for _, f := range []*Finding{counted.checkEndpoints(c), counted.checkTLS(c)} {
			if f != nil {
				found[r] = append(found[r], *f)
			}
		}
	}
	return found
}
