package main

import (
	"encoding/json"
	"regexp"
	"strings"
)

// redacted replaces a secret in a bug report.
const redacted = "[redacted]"

// Patterns of secrets in any text. In case of doubt they match too much.
var (
	secretNames = `(?:token|password|passwd|passphrase|secret|authorization|cookie|` +
		`api[-_]?key|access[-_]?key|private[-_]?key|credential)s?`
	// harmlessName matches names that contain a word for a secret, but whose values are not secret:
	// a path, a name or a setting.
	harmlessName = regexp.MustCompile(`(?i)[-_](file|path|name|names|dir|uri|url|type|manager|` +
		`bucket|config|configs|count|ttl|port)$`)
	secretName = regexp.MustCompile(`(?i)(^|[-_.])` + secretNames +
		`([-_]?(value|data|bytes|string|base64))?$`)
	camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)

	privateKey = regexp.MustCompile(`(?s)-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----.*?` +
		`(-----END ([A-Z0-9 ]*)PRIVATE KEY-----|\z)`)
	webToken   = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
	bearer     = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}`)
	userInfo   = regexp.MustCompile(`(://)[^/\s"'@:]*:[^/\s"'@]*@`)
	assignment = regexp.MustCompile(`(?i)("?[A-Za-z0-9_.-]*` + secretNames +
		`[A-Za-z0-9_-]*"?\s*[=:]\s*)("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s,;&"'\[{]+)`)
)

// redact removes likely secrets from the content of a file in the report, which may be JSON.
func redact(content string) string {
	if trimmed := strings.TrimSpace(content); strings.HasPrefix(trimmed, "{") ||
		strings.HasPrefix(trimmed, "[") {
		decoder := json.NewDecoder(strings.NewReader(trimmed))
		decoder.UseNumber()
		var value any
		if decoder.Decode(&value) == nil && !decoder.More() {
			if text, err := json.MarshalIndent(redactValue(value, false), "", "  "); err == nil {
				return string(text) + "\n"
			}
		}
	}
	return redactText(content)
}

// redactText removes likely secrets from text such as configuration or log lines.
func redactText(content string) string {
	content = privateKey.ReplaceAllString(content, redacted)
	content = webToken.ReplaceAllString(content, redacted)
	content = bearer.ReplaceAllString(content, "$1 "+redacted)
	content = userInfo.ReplaceAllString(content, "${1}"+redacted+"@")
	return assignment.ReplaceAllStringFunc(content, func(found string) string {
		parts := assignment.FindStringSubmatch(found)
		name := strings.Trim(strings.TrimRight(parts[1], " \t=:"), `"`)
		if !isSecretName(name) {
			return found
		}
		return parts[1] + `"` + redacted + `"`
	})
}

// isSecretName reports whether the value of a field with this name is likely a secret.
func isSecretName(name string) bool {
	name = camelCase.ReplaceAllString(name, "${1}_${2}")
	return secretName.MatchString(name) && !harmlessName.MatchString(name)
}

// redactValue removes likely secrets from decoded JSON. inside means that the name of an enclosing
// member is that of a secret.
func redactValue(value any, inside bool) any {
	switch value := value.(type) {
	case map[string]any:
		header := ""
		for _, member := range []string{"key", "name"} {
			if text, ok := value[member].(string); ok {
				header = text
			}
		}
		for name, member := range value {
			switch text, isText := member.(string); {
			// the node in a bootstrap: its metadata, from [node], may contain any secret
			case name == "node":
				if node, isObject := member.(map[string]any); isObject && node["metadata"] != nil {
					node["metadata"] = redactAll(node["metadata"])
				}
				value[name] = redactValue(member, inside)
			case isText && (isSecretName(name) || isHolder(name) &&
				(inside || isSecretName(header))):
				value[name] = redacted
			case isText:
				value[name] = redactText(text)
			default:
				value[name] = redactValue(member, inside || isSecretName(name) ||
					name == "string_match" && isSecretName(header))
			}
		}
		return value
	case []any:
		for i, element := range value {
			if _, isText := element.(string); isText && inside {
				value[i] = redacted
				continue
			}
			value[i] = redactValue(element, inside)
		}
		return value
	case string:
		return redactText(value)
	}
	return value
}

// redactAll replaces all values of decoded JSON.
func redactAll(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			value[name] = redactAll(member)
		}
		return value
	case []any:
		for i, element := range value {
			value[i] = redactAll(element)
		}
		return value
	}
	return redacted
}

// isHolder reports whether a member with this name contains the value of a data source, of a header
// or of a string matcher.
func isHolder(name string) bool {
	switch name {
	case "inline_string", "inline_bytes", "value", "raw_value", "string_value", "exact", "prefix",
		"suffix", "contains", "regex":
		return true
	}
	return false
}
