package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

// adminAnswers returns responses of Envoy's admin interface by path, in the format of Envoy 1.40.
func adminAnswers() map[string]string {
	return map[string]string{
		"config_dump": fmt.Sprintf(`{"configs": [
 {"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "bootstrap": {"node": {"id": "sidecar~10.0.0.1~a~b"}}},
 {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
  "static_clusters": [{"cluster": {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "xds", "connect_timeout": "1s"}}],
  "dynamic_active_clusters": [{"version_info": "0123456789abcdef0123", "cluster": {"name": "outbound|80||a.example.com", "type": "STRICT_DNS", "lb_policy": "LEAST_REQUEST"}},
   {"cluster": {"name": "dns", "cluster_type": {"name": "envoy.cluster.dns"}}}],
  "dynamic_warming_clusters": [{"version_info": "2", "cluster": {"name": "outbound|80||b.example.com", "type": "EDS"}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
  "static_listeners": [{"listener": {"name": "ready", "address": {"socket_address": {"address": "0.0.0.0", "port_value": 15021}}, "filter_chains": [{}]}}],
  "dynamic_listeners": [{"name": "web", "active_state": {"version_info": "3", "listener": {"name": "web", "address": {"socket_address": {"address": "::", "port_value": 80}}, "filter_chains": [{}, {}], "default_filter_chain": {}}}},
   {"name": "bad", "error_state": {"details": "no such filter"}},
   {"name": "local", "warming_state": {"listener": {"name": "local", "address": {"pipe": {"path": "/run/x.sock"}}}}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
  "static_route_configs": [{"route_config": {"virtual_hosts": [{"name": "status", "domains": ["*"], "routes": [{"match": {"path": "/ready"}, "direct_response": {"status": 200}}]}]}}],
  "dynamic_route_configs": [{"version_info": "4", "route_config": {"name": "web", "virtual_hosts": [{"name": "v", "domains": ["a", "b", "c", "d"], "routes": [
   {"match": {"prefix": "/", "headers": [{"name": "x-canary"}]}, "route": {"weighted_clusters": {"clusters": [{"name": "one", "weight": 90}, {"name": "two", "weight": 10}]}}},
   {"match": {"safe_regex": {"regex": "/v[0-9]+"}}, "redirect": {"host_redirect": "c.example.com"}},
   {"match": {"path_separated_prefix": "/api"}, "route": {"cluster": "one"}}]}]}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
  "static_secrets": [{"name": "roots", "secret": {"validation_context": {"trusted_ca": {"filename": "/etc/ssl/roots.pem"}}}}],
  "dynamic_active_secrets": [{"name": "default", "version_info": "5", "secret": {"tls_certificate": {"certificate_chain": {"inline_bytes": %q}, "private_key": {"inline_bytes": "W3JlZGFjdGVkXQ=="}}}}],
  "dynamic_warming_secrets": [{"name": "later"}, {"name": "hidden", "secret": {"tls_certificate": {"certificate_chain": {"inline_bytes": "[redacted]"}}}}]}]}`, certificateForTests()),
		"clusters?format=json": `{"cluster_statuses": [
 {"name": "outbound|80||a.example.com", "host_statuses": [
  {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}, "weight": 1, "health_status": {"eds_health_status": "HEALTHY"},
   "stats": [{"name": "cx_active", "value": "3", "type": "GAUGE"}, {"name": "rq_total", "value": "100"}, {"name": "rq_error"}]},
  {"address": {"socket_address": {"address": "10.0.0.2", "port_value": 80}}, "weight": 5, "health_status": {"failed_outlier_check": true, "eds_health_status": "DRAINING"},
   "stats": [{"name": "rq_error", "value": "7"}]}]},
 {"name": "xds", "host_statuses": [{"address": {"pipe": {"path": "/run/outrider/envoy/xds.sock"}}, "health_status": {"eds_health_status": "HEALTHY"}}]}]}`,
	}
}

// certificateForTests returns a self-signed certificate with a SPIFFE ID, as PEM encoded in base64.
func certificateForTests() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	identity, err := url.Parse("spiffe://cluster.local/ns/default/sa/web")
	if err != nil {
		panic(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "web"},
		URIs:      []*url.URL{identity},
		NotBefore: ago(time.Hour), NotAfter: noon.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: der}))
}
